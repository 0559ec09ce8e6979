"""One rank: `cache_compile`, guards, engines, capture and devices; knows torch, not ray.

Its public names stand in `warmrank`.
"""
