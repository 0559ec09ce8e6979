"""TorchAir's ``patch_for_hcom``: collectives in the graph need no patch on the releases of torch we support."""

from __future__ import annotations

import logging


def patch_for_hcom() -> None:
    """Do nothing, and say so once: since torch 2.3.1 Dynamo traces ``torch.distributed`` collectives itself."""
    logging.getLogger("torchair").warning(
        "patch_for_hcom is not needed with this release of torch: collectives are traced without it"
    )
