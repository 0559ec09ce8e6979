"""What keeps a store small and whole: marks, evict, trash, pins, last use, audit."""
