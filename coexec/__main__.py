"""``python -m coexec``: the same as the ``coexec`` command."""

from coexec.cli.commands import main

if __name__ == "__main__":
    main()
