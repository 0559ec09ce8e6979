"""The port to the places that keep a store's bytes, its implementations, and several places as one."""
