"""Files that lie where an artifact should, and are none, or not this user's alone: a reason, and no load."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.small_models import Plain
from tests.support.tracing import ROWS, cached, model_of, outcome, reason

pytestmark = pytest.mark.usefixtures("no_grad")


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def compiled_in_spite_of(cache: Path) -> str:
    """Compiles and runs; gives the reason of the miss."""
    function = cached(Plain().affine, cache)
    assert torch.equal(function(ROWS), model_of(function).affine(ROWS))
    assert outcome(function) == "compiled"
    return reason(function)


def test_pickle_of_torchair_is_moved_aside_and_never_unpickled(cache, affine_artifact, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Bomb())
    affine_artifact.write_bytes(pickled)
    assert "a pickle, as TorchAir writes them" in compiled_in_spite_of(cache)
    assert affine_artifact.with_name("compiled_module.corrupt").read_bytes() == pickled
    assert not (tmp_path / "exploded").exists()


def test_second_damaged_file_does_not_replace_the_first_that_was_moved_aside(cache, affine_artifact):
    for content in (b"first", b"second"):
        affine_artifact.write_bytes(content)
        compiled_in_spite_of(cache)
    aside = sorted(affine_artifact.parent.glob("*.corrupt*"))
    assert [path.read_bytes() for path in aside] == [b"first", b"second"]


def link_to_itself_elsewhere(artifact: Path) -> None:
    target = artifact.with_name("elsewhere")
    artifact.rename(target)
    artifact.symlink_to(target)


def readable_by_others(artifact: Path) -> None:
    artifact.chmod(0o644)


def directory(artifact: Path) -> None:
    artifact.unlink()
    artifact.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (link_to_itself_elsewhere, "is a symbolic link, which is never followed; remove it"),
        (readable_by_others, "mode 0644"),
        (directory, "found Is a directory"),
    ],
)
def test_what_is_not_this_users_own_file_is_left_where_it_is(cache, affine_artifact, spoil, words):
    spoil(affine_artifact)
    before = affine_artifact.lstat()
    assert words in compiled_in_spite_of(cache)
    assert affine_artifact.lstat().st_ino == before.st_ino
    assert not list(affine_artifact.parent.glob("*.corrupt*"))
