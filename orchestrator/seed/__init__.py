"""Filling nodes' caches from the store before anything is launched."""
