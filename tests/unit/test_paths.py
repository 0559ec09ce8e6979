from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.cache_store.paths import collision, collisions, path_fault


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("", "part ''"),
        ("/etc/passwd", "absolute"),
        ("..", "part '..'"),
        ("a/../../b", "part '..'"),
        ("a/./b", "part '.'"),
        ("a//b", "part ''"),
        ("a/", "part ''"),
        ("a\\b", "backslash"),
        ("C:\\b", "backslash"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\ud800", "control"),
        ("abc/" * 256 + "ab", "longer than 1024"),
        ("a/" * 32 + "b", "more than 32 parts"),
        ("a" * 256, "part longer than 255"),
    ],
)
def test_path_fault_names_the_hazard(path, fault):
    assert fault in (path_fault(path) or "")


@given(st.text(max_size=40))
def test_path_fault_lets_no_path_leave_its_directory(path):
    joined = PurePosixPath("/root") / path
    assert path_fault(path) or (joined.is_relative_to("/root") and ".." not in joined.parts)


@pytest.mark.parametrize(
    ("paths", "fault"),
    [
        (["a/b", "a/b"], "twice"),
        (["a/b", "a/B"], "where case is ignored"),
        (["A/x", "a/y"], "where case is ignored"),
        (["stra\u00dfe/x", "strasse/y"], "where case is ignored"),
        (["\u00e9/x", "e\u0301/y"], "where case is ignored"),
        (["a", "a/b"], "a file and a directory"),
        (["a/b/c", "a/b"], "a file and a directory"),
    ],
)
def test_collision_names_both(paths, fault):
    assert fault in (collision(paths) or "")


def test_collisions_are_of_the_later_paths_and_of_those_that_stand():
    paths = ["A/x", "a/y", "a/z", "b", "b/c", "B", "A/x"]
    assert dict(collisions(paths)) == {
        "a/y": "'A' and 'a' are one name where case is ignored",
        "a/z": "'A' and 'a' are one name where case is ignored",
        "b/c": "'b' is a file and a directory",
        "B": "'b' and 'B' are one name where case is ignored",
        "A/x": "'A/x' appears twice",
    }
