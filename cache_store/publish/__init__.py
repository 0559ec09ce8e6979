"""From a node's disk into the store."""
