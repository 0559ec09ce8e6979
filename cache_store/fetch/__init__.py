"""From the store onto a node's disk."""
