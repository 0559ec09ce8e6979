"""The command line: thin commands, consoles, exit codes."""
