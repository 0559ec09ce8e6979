"""Configuration of a compile, with TorchAir's names; nothing here imports torch."""
