"""Components of a request key: environment, code and configuration."""
