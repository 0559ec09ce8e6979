"""Nodes' local disks filled from the store, before anything runs on them."""
