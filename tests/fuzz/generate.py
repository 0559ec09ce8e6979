"""From a seed to a program and its changes; the same seed always gives the same."""

from __future__ import annotations

from random import Random

from tests.fuzz.parts import code, evaluated, identity, language, sets, tensors
from tests.fuzz.places import placed
from tests.fuzz.program import NOTHING, Change, Pair, Part, Program, Trial
from tests.fuzz.ranks import ranked

MODES = ("reduce-overhead", "max-autotune")
_UNSEEN = (
    Change(name="comment", slots={"top": "# a comment\n"}),
    Change(name="function that is not called", slots={"helper": "def unused(y):\n    return y * 1000\n"}),
    Change(name="global that is not read", slots={"helper": "UNREAD = 77\n"}),
    Change(name="attribute that is not read", mutate="m.unread = 5"),
    Change(name="other weights", mutate="[p.data.mul_(2) for p in m.parameters()]"),
    Change(name="environment variable that is not read", environment={"FUZZ_UNREAD": "1"}),
    Change(name="seed", mutate="torch.manual_seed(99)"),
)
"""Changes that alter no result but that of the weights, and should be hits."""
_ALONE = Change(name="rank 1 finds only what rank 0 left", alone=True)


def trial(seed: int, *, changes: int = 12, mode: str = "", only: str = "") -> Trial:
    """The trial of a seed.

    Args:
        seed: any integer.
        changes: at most so many.
        mode: of `cache_compile`; empty: mostly reduce-overhead, as one seed in 25 is the other.
        only: part of the name of at least one of the program's parts.
    """
    rng = Random(seed)
    while True:
        parts = _parts(rng)
        if only in " + ".join(part.name for part in parts):
            break
    ranks = any(part.ranks for part in parts)
    chosen = mode or (MODES[1] if seed % 25 == 24 and not ranks else MODES[0])
    program = Program(
        parts=tuple(part.numbered(number) for number, part in enumerate(parts)),
        mode=chosen,
        dynamic=rng.random() < 0.8,
        gloo=chosen == MODES[0] and (seed % 2 == 0 if ranks else seed % 25 == 3),
    )
    return Trial(seed=seed, program=program, pairs=_pairs(rng, program, changes))


def _parts(rng: Random) -> list[Part]:
    count = rng.choice([1, 1, 1, 2, 2, 3])
    found = []
    for position in range(count):
        kind = rng.random()
        if kind < 0.42:
            found.append(placed(rng, last=position == count - 1))
        elif kind < 0.52:
            found.append(ranked(rng))
        else:
            found.append(rng.choice(rng.choice(_GROUPS)))
    return found


_GROUPS = (
    code.CODE,
    tensors.TENSORS,
    tensors.TENSORS,
    identity.IDENTITY,
    code.PROCESS,
    identity.CLASSES,
    identity.CLASSES,
    tensors.OPERATORS,
    tensors.SIZES,
    [part for part in (*evaluated.EVALUATED, *sets.SETS, *language.LANGUAGE) if not part.refused],
)


def _pairs(rng: Random, program: Program, changes: int) -> tuple[Pair, ...]:
    """One pair without a change, one that no result shows, some inputs, and changes of every part."""
    found = [Pair(index=-1, change=NOTHING), Pair(index=-1, change=rng.choice(_UNSEEN))]
    if program.gloo:
        found.append(Pair(index=-1, change=_ALONE))
    elif program.ranks:
        found.append(Pair(index=-1, change=rng.choice([c for c in _ranks(program) if c.rank])))
    names = rng.sample(list(tensors.INPUTS), 2)
    found += [Pair(index=-1, change=Change(name=f"input: {n}", x=tensors.INPUTS[n])) for n in names]
    possible = [
        Pair(index=index, change=change, later=later)
        for index, part in enumerate(program.parts)
        for change in part.changes
        for later in (False, True)
        if (not later or change.mutate or change.context) and not (program.gloo and change.rank)
    ]
    rng.shuffle(possible)
    return (*found, *possible[: max(0, changes - len(found))])


def _ranks(program: Program) -> list[Change]:
    return [change for part in program.parts for change in part.changes]
