"""Launches that run as jobs of a Ray cluster."""
