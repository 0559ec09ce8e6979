"""The worker's errors: fields that survive the way from a rank to the driver."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.worker import errors
from warmrank.worker.errors import NotYet, PortInUse, StateChanged, WorkerError

KINDS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WorkerError)),
    key=lambda kind: kind.__name__,
)
PLAIN = st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text()), st.booleans())
NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(
    lambda name: name not in ("args", "self", "message")
)


def pickled(error: WorkerError) -> WorkerError:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert isinstance(copy, WorkerError)
    return copy


def make(kind: type[WorkerError]) -> WorkerError:
    if kind is StateChanged:
        return StateChanged("layer.weight", None)
    if kind is PortInUse:
        return PortInUse("10.0.0.1", 29500)
    return NotYet("x", instead="y") if kind is NotYet else kind("what happened", rank=3)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_of_every_kind_survives_pickling(kind: type[WorkerError]) -> None:
    error = make(kind)
    copy = pickled(error)
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.fields == error.fields


@given(message=st.text(), fields=st.dictionaries(NAMES, PLAIN, max_size=4))
def test_error_round_trips(message: str, fields: dict[str, object]) -> None:
    copy = pickled(WorkerError(message, **fields))
    assert (copy.message, copy.fields) == (message, fields)
