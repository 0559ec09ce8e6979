"""warmrank's store: bytes, digests, manifests, publish, fetch and trust; knows neither torch nor ray."""
