"""One rank through the stages of a launch; nothing here knows Ray."""
