"""What decides whether an artifact fits: environment, code and configuration, as parts of a request key."""
