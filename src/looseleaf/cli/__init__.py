"""The `looseleaf` command."""
