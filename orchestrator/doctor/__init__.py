"""What is wrong with a node, or a cluster, and how to mend it."""
