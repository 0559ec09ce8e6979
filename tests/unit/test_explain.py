from __future__ import annotations

from warmrank.cache_store.keys import explain_miss, nearest

ASKED = {"torch": "2.13.1", "cann": "9.0", "soc": "910B"}
FAR = ("world 4", {"torch": "2.12.0", "cann": "8.0", "soc": "910B"})
NEAR = ("world 2", {"torch": "2.13.0", "cann": "9.0", "soc": "910B"})


def test_nearest_has_the_fewest_changes():
    found = nearest(ASKED, [FAR, NEAR])
    assert found is not None
    assert (found.label, [str(change) for change in found.changes]) == ("world 2", ["torch 2.13.0 -> 2.13.1"])


def test_explain_miss_is_one_line_that_names_what_differs():
    assert explain_miss(ASKED, [FAR, NEAR]) == "nearest is world 2: torch 2.13.0 -> 2.13.1"
