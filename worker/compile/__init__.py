"""Compile a call into an artifact, and show what is in one; a warm load imports nothing of this room."""
