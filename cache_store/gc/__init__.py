"""Retention: marks, evict, trash, pins, verify."""
