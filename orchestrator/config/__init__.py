"""From a file and overrides to a checked, frozen config."""
