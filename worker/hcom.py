"""TorchAir's ``patch_for_hcom`` and its siblings, which the supported releases of torch do not need."""

from __future__ import annotations

import logging


def patch_for_hcom() -> None:
    """Do nothing, and say so: since torch 2.3.1 Dynamo traces collectives itself."""
    logging.getLogger("torchair").warning(
        "patch_for_hcom is not needed with this release of torch: collectives are traced without it"
    )


patch_for_hcom_allreduce = patch_for_deepspeed_allreduce = patch_for_hcom
