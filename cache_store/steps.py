"""The steps of the store's verbs by name, so that tests can end a process or fail a call at each of them.

`reached` raises an audit event of Python (`sys.audit`), which costs nothing where nobody listens; a test
listens with `sys.addaudithook`, in a process of its own because a hook cannot be taken away. What is done
before a step is durable where the step's comment says so.
"""

from __future__ import annotations

import sys
from enum import StrEnum

EVENT = "warmrank.step"


class Step(StrEnum):
    """Points where a process may end without harm, in the order of the code."""

    MOVE_LINKED = "move: linked, former name stands"
    PUT_STAGED = "put: staged, not flushed"
    PUT_FLUSHED = "put: flushed, no name yet"
    PUT_LINKED = "put: names linked, not flushed"
    PUT_DURABLE = "put: names durable"
    PUBLISH_STARTED = "publish: nothing written"
    PUBLISH_BLOBS = "publish: blobs durable, no manifest"
    PUBLISH_MANIFEST = "publish: manifest durable, blobs not looked at again"
    PUBLISH_DONE = "publish: blobs looked at again"
    COMMIT_CHECKED = "commit: manifests looked at, no record"
    COMMIT_RECORD = "commit: record durable"
    FETCH_CHECKED = "fetch: complete in the store, nothing copied"
    FETCH_STAGED = "fetch: verified in staging"
    FETCH_PLACED = "fetch: one function in place"
    FETCH_DONE = "fetch: everything in place"
    EVICT_MARKED = "evict: marked, nothing moved"
    EVICT_TRASHED = "evict: one file in the trash"
    EVICT_CHECKED = "evict: marked again, nothing restored"
    EVICT_RESTORED = "evict: what is needed again is restored"
    EVICT_DELETED = "evict: one file of the trash deleted"


def reached(step: Step) -> None:
    """Tell whoever listens that ``step`` was reached."""
    sys.audit(EVENT, step.value)
