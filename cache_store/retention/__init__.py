"""What refers to what, what was used when, and what was taken away: the marks that eviction goes by."""
