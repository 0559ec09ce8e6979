"""TorchAir's ``torchair.inference``, where its scripts import it from."""

from warmrank.worker.inference import cache_compile, get_backend, readable_cache, set_dim_gears

__all__ = ["cache_compile", "get_backend", "readable_cache", "set_dim_gears"]
