"""The cache directory on a node's own disk, and its private files."""
