"""Looking into stores, artifacts and machines; nothing is changed but by a repair."""
