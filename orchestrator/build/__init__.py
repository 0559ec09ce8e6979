"""Offline builds: all ranks' partitions on one machine."""
