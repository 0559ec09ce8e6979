"""What lies on a node's own disk: the cache directory and its private files."""
