"""Whom this process believes, and what it signs with."""
