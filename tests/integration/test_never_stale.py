"""Never stale: after any one change that matters the old artifact is not used; after any other it is.

The first launch compiles `tests/support/tiny_model`. Each case is a second launch, in another process, from
another directory, with one change. Every launch, whatever its outcome, must give eager's result to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.support.checkout import selected
from tests.support.stale import Change, Launches, Result
from tests.support.stale_changes import DOES_NOT_MATTER, MATTERS, REFUSED


def of(request: pytest.FixtureRequest, argument: str, cases: Mapping[str, Change]) -> dict[str, Change]:
    """The cases that this session runs."""
    chosen = selected(request, argument)
    return {name: change for name, change in cases.items() if name in chosen}


@pytest.fixture(scope="module")
def launches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launches:
    made = Launches(tmp_path_factory.mktemp("launches"))
    chosen = {**of(request, "change", MATTERS | REFUSED), **of(request, "other", DOES_NOT_MATTER)}
    made.first(change.base for change in chosen.values())
    return made


@pytest.fixture(scope="module")
def after_what_matters(request: pytest.FixtureRequest, launches: Launches) -> dict[str, Result]:
    return launches.second(of(request, "change", MATTERS | REFUSED), tracer=True)


@pytest.fixture(scope="module")
def after_what_does_not(request: pytest.FixtureRequest, launches: Launches) -> dict[str, Result]:
    return launches.second(of(request, "other", DOES_NOT_MATTER), tracer=False)


@pytest.mark.one_in(500)
@pytest.mark.parametrize("change", MATTERS)
def test_change_that_matters_is_compiled_anew(change: str, after_what_matters: dict[str, Result]) -> None:
    result = after_what_matters[change]
    assert (result.outcome, result.wrong) == ("compiled", ""), result
    assert re.search(MATTERS[change].reason, result.reason), result.reason
    assert result.again == "loaded"


@pytest.mark.slow
@pytest.mark.parametrize("change", REFUSED)
def test_change_that_no_artifact_can_hold_is_refused(
    change: str, after_what_matters: dict[str, Result]
) -> None:
    result = after_what_matters[change]
    assert result.outcome == "NotPortable", result
    assert re.search(REFUSED[change].reason, result.reason), result.reason


@pytest.mark.one_in(100)
@pytest.mark.parametrize("other", DOES_NOT_MATTER)
def test_change_that_does_not_matter_is_loaded(other: str, after_what_does_not: dict[str, Result]) -> None:
    result = after_what_does_not[other]
    assert (result.outcome, result.wrong, result.again) == ("loaded", "", "loaded"), result
    assert result.imported == []
