from __future__ import annotations

import stat

import pytest

from cache_store.errors import UnusableCache
from cache_store.node.unverified import UNVERIFIED, admit, mark_unverified, refuse_unverified


def test_unverified_directory_is_refused_under_require(tmp_path):
    mark_unverified(tmp_path, "off")
    with pytest.raises(UnusableCache, match="use another cache_dir, or empty this one"):
        refuse_unverified(tmp_path, "require")


@pytest.mark.parametrize("policy", ["warn", "off"])
def test_unverified_directory_is_taken_under_other_policies(tmp_path, policy):
    mark_unverified(tmp_path, policy)
    refuse_unverified(tmp_path, policy)
    assert (tmp_path / UNVERIFIED).exists()


@pytest.mark.parametrize("name", ["", "gone"])
def test_directory_without_the_mark_is_taken_under_require(tmp_path, name):
    refuse_unverified(tmp_path / name, "require")
    assert list(tmp_path.iterdir()) == []


def test_required_signatures_leave_no_mark(tmp_path):
    mark_unverified(tmp_path, "require")
    assert list(tmp_path.iterdir()) == []


def test_mark_is_private_and_says_why(tmp_path):
    mark_unverified(tmp_path, "off")
    mark_unverified(tmp_path, "off")
    assert stat.S_IMODE((tmp_path / UNVERIFIED).stat().st_mode) == 0o600
    assert "'require'" in (tmp_path / UNVERIFIED).read_text()


def test_admitted_directory_is_made_private(tmp_path):
    admit(tmp_path / "cache", "require")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_marked_directory_is_not_admitted_under_require(tmp_path):
    mark_unverified(tmp_path, "warn")
    with pytest.raises(UnusableCache, match="empty this one"):
        admit(tmp_path, "require")
