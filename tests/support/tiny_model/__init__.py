"""A model spread over several files, which the never-stale tests copy, change and launch again."""
