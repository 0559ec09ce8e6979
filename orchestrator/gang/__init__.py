"""The ranks' processes: who starts them, calls them, watches them, ends them."""
