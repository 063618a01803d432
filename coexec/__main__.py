"""The ``coexec`` command, also as ``python -m coexec``. Ctrl-C ends it in one way, while it is being loaded too."""

from __future__ import annotations

import sys

from coexec.cli import INTERRUPTED


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        from coexec.cli.commands import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        print("coexec: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
