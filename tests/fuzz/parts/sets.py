"""Orders of sets and hashes of texts, which Dynamo takes from the process that traces."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from tests.fuzz.parts.evaluated import asking

_WEIGHED = "def weighed#(members): return 1 + sum(place * ord(member[0]) for place, member in enumerate(members))\ndef less#(members):\n    made = set(members)\n    made.add('q')\n    made.remove('q')\n    return made\nGLOBAL# = {'a', 'b', 'c', 'dd', 'ee'}"
_HASHED = (
    "weighed#(self.s#)", "ord(next(iter(GLOBAL#))[0])", "weighed#([*self.s#])", "ord(''.join(self.s#)[0])",
    "weighed#(sorted(self.s#, key=len))", "weighed#(set(['a', 'b', 'c', 'dd', 'ee']))",
    "sum(p * ord(n) for p, n in enumerate(frozenset(['b', 'a', 'c'])))", "hash('abc') % 1000", "'abc'.__hash__() % 1000",
)  # fmt: skip
_INDIFFERENT = (
    "weighed#(sorted(self.s#))", "2 if 'a' in self.s# else 3", "len(self.s#)",
    "sum(place * number for place, number in enumerate({5, 9, 1}))", "hash(7)",
)  # fmt: skip
# Sets that the function makes: Dynamo goes over them as they were filled, Python does not.
_FILLED = """\
PAIR# = (1, 2)
def added#(members):
    made = set()
    for member in members:
        made.add(member)
    return made
def more#(members, member):
    members.add(member)
    return members
def without#(members, member):
    members.discard(member)
    return members
def updated#(members, more):
    members.update(more)
    return members
def placed#(numbers): return sum(place * number for place, number in enumerate(numbers))
def looped#():
    total = 0
    for number in {9, 4, 2, 17, 33}:
        total = total * 2 + number
    return total
"""
_IN_PYTHONS_ORDER = (
    "placed#({3 + len(PAIR#), 1, len(PAIR#)})", "placed#({9, 4, 2, 17, 33})", "sum(p * n for p, n in enumerate(frozenset([9, 4, 17])))",
    "placed#({n % 7 for n in (9, 4, 2)})", "placed#(set([3, 1, 2]))", "placed#(added#([9, 4, 2, 17]))", "placed#(more#({9, 4, 2, 17}, 25))",
    "sum(map(ord, str({9, 4, 2, 17})[:3]))", "{30, 10, 20}.pop() + 1", "max({9, 4} | {17}) + len({9, 4} | {17}) + sum(sorted({9, 4} | {17}))",
    "len(({9, 4} | {17}) - {4} ^ {9, 3}) + ({9} <= {9, 4} | {2})", "looped#()",
)  # fmt: skip
_OF_SETS = (
    "placed#({9, 4} | {17, 2})", "placed#({9, 4} ^ {4, 17})", "placed#(set([9, 4, 2, 33, 17]) & {9, 33})", "placed#({9, 4} - {4} | {17})",
    "placed#(frozenset([9, 17]).union([33], {2}))", "placed#(set(n * 8 for n in range(9)).difference([16, 40]))", "placed#(set(set([9, 4, 2, 17])))",
    "placed#(frozenset({9, 17}))", "placed#(updated#({9, 4}, {17, 2}))", "placed#(without#(added#([9, 4, 2, 17]), 4))", "({9, 4} | {17, 2}).pop() + 1",
)  # fmt: skip
# Processes hash strings otherwise; where that counts, what one compiled does not fit the other.
SETS = (
    *(asking(f"set that is made / {ask}", ask, top=_FILLED) for ask in _IN_PYTHONS_ORDER),
    *(asking(f"set that is made of sets / {ask}", ask, top=_FILLED) for ask in _OF_SETS),
    asking("order of a set that lost a member", "weighed#(less#(['a', 'b', 'c', 'dd', 'ee']))", said="order", top=_WEIGHED),
    asking("order of a set of a literal", "placed#({9, 17, 33} | {2})", refused="order of a set .* sorted", top=_FILLED),
    asking("order of a set that was changed", "placed#(more#(self.s#, 17))", refused="order of a set .* sorted", top=_FILLED, init="self.s# = {9, 4}"),
    asking("order of a set from before", "placed#(PAIR# | {7, 1})", refused="order of a set .* sorted", top="PAIR# = {9, 4}\n" + _FILLED.partition("\n")[2]),
    *(
        asking(f"order or hash / {ask}", ask, said="hash|order" if ask in _HASHED else "", top=_WEIGHED, init="self.s# = {'a', 'b', 'c', 'dd', 'ee'}")
        for ask in (*_HASHED, *_INDIFFERENT)
    ),
)  # fmt: skip
