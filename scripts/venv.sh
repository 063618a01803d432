# Sourced by the other scripts: `ensure_venv EXTRAS` makes .venv in the checkout with coexec installed in it,
# and puts it first on PATH. Installs again only when pyproject.toml or the extras change.
ensure_venv() {
  local extras=$1 root stamp
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  if [ ! -x "$root/.venv/bin/python" ]; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
      echo "coexec needs Python 3.10 or newer as python3" >&2
      return 2
    }
    python3 -m venv "$root/.venv" || {
      echo "python3 cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
      return 2
    }
  fi
  stamp="$root/.venv/.coexec-$extras"
  if [ ! -e "$stamp" ] || [ "$root/pyproject.toml" -nt "$stamp" ]; then
    echo "installing coexec[$extras] into .venv ..." >&2
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$root[$extras]" >&2
    touch "$stamp"
  fi
  export PATH="$root/.venv/bin:$PATH"
}
