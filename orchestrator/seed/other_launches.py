"""What a miss says of the launches that the store does hold; needs neither torch nor Ray.

Invariant: only one node reads other launches, and only where they are few: a thousand nodes that boot at once
shall not each read a whole store to word a miss.
"""

from __future__ import annotations

import logging

from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.explain import explain_miss
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.launch.identity import identity, launch_key

logger = logging.getLogger(__name__)

MOST_KEYS = 16
HINT = "warmrank explain names what differs from what is stored"


def other_launches(store: Store, config: Config, *, may_read: bool) -> str:
    """Why a store holds no launch of a config, for the end of a line; empty where it holds some.

    Args:
        store: where none fits.
        config: the launch.
        may_read: whether records of other launches may be read for it.
    """
    try:
        keys = store.launch_keys()
        if launch_key(config) in keys:
            return ""
        if not keys:
            return "; it holds no launch at all"
        if not may_read or len(keys) > MOST_KEYS:
            return f"; {HINT}"
        # What is launched is behind the key, so one record says it for all of the same key.
        newest = [records[0] for key in keys if (records := store.launches(key))]
    except StoreError as error:
        logger.info("No word of other launches: %s", error)
        return f"; {HINT}"
    candidates = [(f"launch {record.launch_key[:12]}", record.identity) for record in newest]
    return f"; {explain_miss(identity(config), candidates)}"
