"""A store in an object store, through obstore."""
