"""vLLM's compile cache through the store: the plugin that vLLM loads in each of its processes.

Importing this package, and calling `register` without ``WARMRANK_STORE``, imports nothing else.
"""

from __future__ import annotations

import logging
import os


def register() -> None:
    """Serve this process's compile cache from the store that ``WARMRANK_STORE`` names; never raises."""
    if not os.environ.get("WARMRANK_STORE"):
        return
    try:
        from warmrank.orchestrator.vllm_plugin import hooks

        hooks.install()
    except Exception as error:  # noqa: BLE001 - vLLM has to start whatever happens here
        logging.getLogger("vllm.warmrank").warning("warmrank: this vLLM is not served: %s", error)
