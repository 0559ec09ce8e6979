"""Cache directories of other tools (Inductor, Triton, vLLM, TorchAir), pushed to and pulled from a store."""
