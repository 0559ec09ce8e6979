"""TorchAir's ``torchair.configs``, where its scripts import it from."""
