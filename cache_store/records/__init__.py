"""The documents of a store: manifests, launch records, their sealed form, and how they are read."""
