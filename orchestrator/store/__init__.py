"""The store as a launch's driver, its ranks and the command line use it."""
