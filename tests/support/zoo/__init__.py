"""Many small modules, each with a habit that a cached function has to get right, and calls to try it with."""
