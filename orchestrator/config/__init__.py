"""Read a file and overrides into a checked, frozen config."""
