"""Places where a program keeps a value, and ways to read it from there.

In texts ``#`` is the part's number and ``{V}`` the value.
"""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.program import Change, Part
from tests.fuzz.values import Value, plain, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value is kept.

    Attributes:
        name: of the place.
        slots: text by slot.
        read: expression inside ``forward``.
        target: what a change after the build assigns to; empty if nothing can be.
        of: object and name of the attribute, where it is one.
        value: expression of the value for changes in place; by default the target.
    """

    name: str
    slots: Mapping[str, str]
    read: str
    target: str = ""
    of: tuple[str, str] = ("", "")
    value: str = ""
    bare: Mapping[str, str] = field(default_factory=dict)


def _attribute(name: str, before: str, of: str, attribute: str = "a", *, slot: str = "init") -> Place:
    """An attribute of ``of``, which the text ``before`` makes."""
    target = of.replace("self", "m", 1) if of.startswith("self") else of
    bare = before or "pass"
    return Place(
        name=name,
        slots={slot: f"{before}\n{of}.{attribute} = {{V}}".lstrip()},
        bare={slot: bare},
        read=f"{of}.{attribute}",
        target=f"{target}.{attribute}",
        of=(of, attribute),
    )


PLACES = (
    _attribute("attribute", "", "self", "a#"),
    _attribute("attribute named like generated code", "", "self", "_p0#"),
    _attribute("attribute of a submodule", "self.s# = nn.Module()", "self.s#"),
    _attribute("attribute of a layer", "self.s# = nn.Linear(4, 4, dtype=torch.float64)", "self.s#"),
    _attribute("attribute of a nested module", "self.s# = nn.Module(); self.s#.q = nn.Module()", "self.s#.q"),
    _attribute("attribute of an element", "self.s# = nn.ModuleList([nn.Module(), nn.Module()])", "self.s#[1]"),
    _attribute("attribute of a named element", "self.s# = nn.ModuleDict({'k': nn.Module()})", "self.s#['k']"),
    _attribute("attribute of an object", "self.o# = K.Box()", "self.o#"),
    _attribute("attribute of an object of an object", "self.o# = K.Box(); self.o#.q = K.Box()", "self.o#.q"),
    _attribute("attribute of an object in a dict", "self.o# = {'k': K.Box()}", "self.o#['k']"),
    _attribute("attribute of an object in a list", "self.o# = [K.Box()]", "self.o#[0]"),
    _attribute("attribute of a namespace", "self.o# = types.SimpleNamespace(z=1)", "self.o#"),
    _attribute("attribute of a parameter", "self.w# = nn.Parameter(torch.ones(2), requires_grad=False)", "self.w#"),
    _attribute("attribute of a buffer", "self.register_buffer('w#', torch.ones(2))", "self.w#"),
    _attribute("attribute of a dataclass", "self.o# = K.Config()", "self.o#"),
    _attribute("slot", "self.o# = K.Slotted(1)", "self.o#", "b"),
    _attribute("attribute of the config object", "cfg# = types.SimpleNamespace(model=K.Box())", "cfg#.model", slot="conf"),
    Place(
        name="item of a dict", slots={"init": "self.d# = {'z': 0, 'k': {V}}"}, read="self.d#['k']", target="m.d#['k']"
    ),
    Place(
        name="item of a dict, asked for", slots={"init": "self.d# = {'z': 0, 'k': {V}}"}, read="self.d#.get('k', 4)",
        target="m.d#['k']",
    ),
    Place(name="item of a list", slots={"init": "self.l# = [0, {V}]"}, read="self.l#[1]", target="m.l#[1]"),
    Place(name="item of a tuple", slots={"init": "self.l# = (0, {V})"}, read="self.l#[1]", value="m.l#[1]"),
    Place(
        name="class attribute", slots={"fields": "c# = {V}"}, read="self.c#", target="main.Main.c#", of=("self", "c#"),
        bare={"fields": "pass"},
    ),
    Place(
        name="class attribute, of the class", slots={"fields": "c# = {V}"}, read="type(self).c#", target="main.Main.c#",
        of=("Main", "c#"), bare={"fields": "pass"},
    ),
    Place(
        name="class attribute, hidden by the instance's", slots={"fields": "c# = {V}"}, read="self.c#", target="m.c#"
    ),
    Place(
        name="attribute of a base class", slots={"top": "class B#(nn.Module):\n    c = {V}\nclass D#(B#):\n    pass",
        "init": "self.s# = D#()"}, read="self.s#.c", target="main.B#.c", of=("self.s#", "c"),
    ),
    Place(
        name="attribute of a derived class", slots={"top": "class B#(nn.Module):\n    c = 5\nclass D#(B#):\n    c = {V}",
        "init": "self.s# = D#()"}, read="self.s#.c", target="main.D#.c", of=("self.s#", "c"),
        bare={"top": "class B#(nn.Module):\n    c = 5\nclass D#(B#):\n    pass"},
    ),
    Place(
        name="attribute of an object's class", slots={"top": "class O#:\n    c = {V}", "init": "self.o# = O#()"},
        read="self.o#.c", target="main.O#.c", of=("self.o#", "c"), bare={"top": "class O#:\n    pass"},
    ),
    Place(
        name="attribute of a metaclass", slots={"top": "class T#(type):\n    c = {V}\nclass O#(metaclass=T#):\n    pass"},
        read="O#.c", target="main.T#.c",
    ),
    Place(name="global", slots={"top": "G# = {V}"}, read="G#", target="main.G#"),
    Place(name="global of its globals()", slots={"top": "G# = {V}"}, read="globals()['G#']", target="main.G#"),
    Place(
        name="global of another module", slots={"helper": "G# = {V}"}, read="helper.G#", target="helper.G#",
        of=("helper", "G#"), bare={"helper": "pass"},
    ),
    Place(
        name="global of a module of a module", slots={"conf": "G# = {V}"}, read="helper.conf.G#", target="conf.G#",
        of=("helper.conf", "G#"), bare={"conf": "pass"},
    ),
    Place(
        name="imported name", slots={"helper": "G# = {V}", "top": "from fuzzed.helper import G# as g#"}, read="g#",
        target="main.g#",
    ),
    Place(
        name="global behind a function", slots={"helper": "G# = {V}\ndef get#():\n    return G#"}, read="helper.get#()",
        target="helper.G#",
    ),
    Place(
        name="global of a third module behind a function",
        slots={"conf": "G# = {V}", "helper": "def get#():\n    return conf.G#"}, read="helper.get#()", target="conf.G#",
    ),
    Place(name="member of a global dict", slots={"conf": "T# = {'k': {V}}"}, read="conf.T#['k']", target="conf.T#['k']"),
    Place(
        name="module's own __getattr__",
        slots={"helper": "S# = {'lazy#': {V}}",
               "conf": "def __getattr__(name):\n    from fuzzed import helper\n    if name == 'lazy#':\n"
                       "        return helper.S#[name]\n    raise AttributeError(name)"},
        read="conf.lazy#", target="helper.S#['lazy#']",
    ),
    Place(
        name="module in sys.modules", slots={"helper": "G# = {V}"}, read="sys.modules['fuzzed.helper'].G#",
        target="helper.G#",
    ),
    Place(
        name="closure", slots={"top": "def make#(v):\n    def inner():\n        return v\n    return inner",
        "init": "self.f# = make#({V})"}, read="self.f#()", target="m.f#.__closure__[0].cell_contents",
    ),
    Place(
        name="closure of a class",
        slots={"top": "def made#(v):\n    class C(nn.Module):\n        def forward(self):\n            return v\n    return C",
        "init": "self.s# = made#({V})()"}, read="self.s#()",
        target="type(m.s#).forward.__closure__[0].cell_contents",
    ),
    Place(
        name="default value", slots={"top": "D# = {V}\ndef f#(v=D#):\n    return v"}, read="f#()",
        target="main.f#.__defaults__ = ({V},)",
    ),
    Place(
        name="keyword default", slots={"top": "D# = {V}\ndef f#(*, v=D#):\n    return v"}, read="f#()",
        target="main.f#.__kwdefaults__['v']",
    ),
    Place(
        name="default of a method", slots={"top": "D# = {V}", "fields": "def g#(self, v=D#):\n    return v"},
        read="self.g#()",
    ),
    Place(
        name="attribute of a function", slots={"top": "def f#():\n    return f#.v\nf#.v = {V}"}, read="f#()",
        target="main.f#.v",
    ),
    Place(
        name="attribute of a function, read outside", slots={"top": "def f#():\n    return 1\nf#.v = {V}"}, read="f#.v",
        target="main.f#.v", of=("f#", "v"), bare={"top": "def f#():\n    return 1"},
    ),
    Place(
        name="attribute of a method", slots={"fields": "def g#(self):\n    return 1", "after": "Main.g#.v = {V}"},
        read="self.g#.v", target="main.Main.g#.v", of=("self.g#", "v"), bare={"after": "pass"},
    ),
    Place(
        name="attribute of a partial", slots={"init": "self.f# = functools.partial(K.multiplied)\nself.f#.v = {V}"},
        read="self.f#.v", target="m.f#.v", of=("self.f#", "v"), bare={"init": "self.f# = functools.partial(K.multiplied)"},
    ),
    Place(
        name="keyword of a partial", slots={"init": "self.f# = functools.partial(helper.same, value={V})"},
        read="self.f#()", target="m.f#.keywords['value']",
    ),
    Place(
        name="argument of a partial", slots={"init": "self.f# = functools.partial(helper.same, {V})"}, read="self.f#()",
    ),
    Place(
        name="property", slots={"fields": "@property\ndef p#(self):\n    return self.h#", "init": "self.h# = {V}"},
        read="self.p#", target="m.h#",
    ),
    Place(
        name="cached property",
        slots={"fields": "@functools.cached_property\ndef p#(self):\n    return self.h#", "init": "self.h# = {V}"},
        read="self.p#", target="m.__dict__['p#']",
    ),
    Place(name="descriptor", slots={"fields": "p# = K.Constant({V})"}, read="self.p#",
          target="main.Main.__dict__['p#'].a"),
    Place(name="object's made-up attribute", slots={"init": "self.o# = K.Dynamic(a={V})"}, read="self.o#.a",
          target="m.o#.values['a']", of=("self.o#", "a"), bare={"init": "self.o# = K.Dynamic()"}),
    Place(name="method of an object", slots={"init": "self.o# = K.Held({V})"}, read="self.o#.get()", target="m.o#.a"),
    Place(name="bound method", slots={"init": "self.f# = K.Held({V}).get"}, read="self.f#()",
          target="m.f#.__self__.a"),
    Place(name="context variable", slots={"conf": "C# = contextvars.ContextVar('C#', default=None)\nC#.set({V})"},
          read="conf.C#.get()", target="conf.C#.set({V})"),
    Place(name="__dict__", slots={"init": "self.o# = K.Box(); self.o#.a = {V}"}, read="self.o#.__dict__['a']",
          target="m.o#.a"),
    Place(name="vars()", slots={"init": "self.o# = K.Box(); self.o#.a = {V}"}, read="vars(self.o#)['a']",
          target="m.o#.a"),
    Place(name="the module's __dict__", slots={"init": "self.a# = {V}"}, read="self.__dict__['a#']", target="m.a#"),
    Place(name="iterated objects", slots={"init": "self.o# = [K.Held({V}), K.Held({V})]"},
          read="[o.a for o in self.o#][1]", target="m.o#[1].a"),
    Place(name="iterated modules",
          slots={"init": "self.s# = nn.ModuleList([nn.Module(), nn.Module()])\nfor s in self.s#:\n    s.a = {V}"},
          read="[s.a for s in self.s#][1]", target="m.s#[1].a"),
    Place(name="named children", slots={"init": "self.s# = nn.Module()\nself.s#.a = {V}"},
          read="dict(self.named_children())['s#'].a", target="m.s#.a"),
    Place(name="argument", slots={"params": "v#", "args": "{V}"}, read="v#"),
    Place(name="argument in a list", slots={"params": "v#", "args": "[1, {V}]"}, read="v#[1]"),
    Place(name="argument in a dict", slots={"params": "v#", "args": "{'k': {V}}"}, read="v#['k']"),
    Place(name="argument in a dataclass", slots={"params": "v#", "args": "K.Config(size={V})"}, read="v#.size"),
    Place(name="argument in an object", slots={"params": "v#", "args": "K.Held({V})"}, read="v#.a"),
    Place(name="argument in a namedtuple", slots={"params": "v#", "args": "K.Pair({V})"}, read="v#.size"),
    Place(name="argument named like generated code", slots={"params": "_p#", "args": "{V}"}, read="_p#"),
)  # fmt: skip

_KEYWORD = (
    Place(name="keyword argument", slots={"params": "*, v#=3", "kwargs": "v#={V}"}, read="v#"),
    Place(name="keywords", slots={"params": "**kw#", "kwargs": "v#={V}, _p0={V}"}, read="kw#['v#']"),
    Place(name="further arguments", slots={"params": "*rest#", "args": "1, {V}"}, read="rest#[1]"),
    Place(name="optional argument", slots={"params": "v#=3", "args": "{V}"}, read="v#"),
)  # fmt: skip
"""They end a signature, so a program has at most one of them, as its last part."""


_OPTIONAL = ("getattr or default", "hasattr", "try")
"""Ways to read what may not be there."""


def placed(rng: Random, *, last: bool) -> Part:
    """A value in a place, read in some way."""
    place = rng.choice([*PLACES, *_KEYWORD * 3] if last else PLACES)
    held = value(rng) if rng.random() < 0.75 else plain(rng)
    return part_of(rng, place, held)


def part_of(rng: Random, place: Place, held: Value) -> Part:
    """The part that keeps a value in a place."""
    read, way = _way(rng, place, held)
    expression = rng.choice(held.reads).replace("$", read)
    slots = {slot: text.replace("{V}", held.text) for slot, text in place.slots.items()}
    body, form = _used(rng, expression)
    slots["body"] = body
    changes = [
        Change(
            name=f"{place.name}: {name}",
            slots={slot: text.replace("{V}", other) for slot, text in place.slots.items()},
        )
        for name, other in held.others
    ]
    changes += _mutations(place, held)
    absent = _absence(rng, place, slots, held, optional=way in _OPTIONAL)
    if absent is not None:
        slots, changes = absent[0], [*changes, absent[1]]
    return Part(name=f"{place.name} / {held.kind} / {way} / {form}", slots=slots, changes=tuple(changes))


def _mutations(place: Place, held: Value) -> list[Change]:
    """Assignments and changes in place, after the build."""
    found = []
    if place.target:
        for name, other in held.others:
            statement = (
                place.target.replace("{V}", other) if "{V}" in place.target else f"{place.target} = {other}"
            )
            found.append(Change(name=f"{place.name}: set to {name}", mutate=statement))
    where = place.value or place.target
    if where and "{V}" not in where:
        found += [
            Change(name=f"{place.name}: {name} in place", mutate=statement.replace("$", where))
            for name, statement in held.inplace
        ]
    return found


def _absence(
    rng: Random, place: Place, slots: dict[str, str], held: Value, *, optional: bool
) -> tuple[dict[str, str], Change] | None:
    """An attribute that goes or comes, where there may be none; the slots before it, and the change."""
    if not place.of[0] or not place.bare:
        return None
    if rng.random() < 0.5 or not optional:
        return slots, Change(name=f"{place.name}: gone", slots=place.bare)
    value_there = {slot: slots[slot] for slot in place.bare}
    change = (
        Change(name=f"{place.name}: comes", slots=value_there)
        if rng.random() < 0.5 or not place.target
        else Change(name=f"{place.name}: is added", mutate=f"{place.target} = {held.text}")
    )
    return {**slots, **place.bare}, change


def _way(rng: Random, place: Place, held: Value) -> tuple[str, str]:
    """An expression that reads the value, and what it is called."""
    plain_read = place.read
    ways = [(plain_read, "read")] * 4
    ways += [
        (f"helper.same({plain_read})", "through a function"),
        (f"(lambda q: q)({plain_read})", "through a lambda"), (f"[{plain_read}, 1][0]", "through a list"),
        (f"{{'k': {plain_read}}}['k']", "through a dict"), (f"(q := {plain_read})", "named"),
    ]  # fmt: skip
    of, name = place.of
    if of:
        other = rng.choice(held.others)[1]
        ways += [
            (f"getattr({of}, '{name}')", "getattr"),
            (f"getattr({of}, '{name}', {other})", "getattr or default"),
            (f"({of}.{name} if hasattr({of}, '{name}') else {other})", "hasattr"),
            (f"helper.attempt({of}, '{name}', {other})", "try"),
            (f"operator.attrgetter('{name}')({of})", "attrgetter"),
        ]  # fmt: skip
    return rng.choice(ways)


def _used(rng: Random, expression: str) -> tuple[str, str]:
    """A statement that puts a number or a tensor into the result."""
    prime = rng.choice([3, 7, 13, 19, 29, 37, 43])
    return rng.choice(
        [
            (f"y = y + {prime} * ({expression})", "added"),
            (f"y = helper.taken(y, {prime} * ({expression}))", "added elsewhere"),
            (f"y = y * {prime} + ({expression})", "scaled"),
            (f"n# = {expression}\ny = y + {prime} * n#", "named"),
            (f"for i# in range(2):\n    y = y * 2 + ({expression})", "in a loop"),
            (f"if ({expression}) > 4:\n    y = y * {prime}\nelse:\n    y = y - {prime}", "branched on"),
            (f"y = sum(((y * k + ({expression})) for k in (1, {prime})), y)", "in a generator"),
        ]
    )
