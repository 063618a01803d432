"""The `coexec` command: options in, one call of the library, tables or JSON out."""
