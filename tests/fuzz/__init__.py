"""Differential fuzzing: small programs, single changes, fresh processes, and eager as the judge."""
