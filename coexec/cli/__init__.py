"""The `coexec` command: options in, one call of the library, tables or JSON out."""

INTERRUPTED = 130
"""What shells give a command that Ctrl-C ended."""
