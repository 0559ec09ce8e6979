"""Places where a program keeps a value, and ways to read it from there.

In texts ``#`` is the part's number and ``{V}`` the value.
"""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

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


def _at(
    name: str,
    read: str,
    target: str = "",
    *,
    of: tuple[str, str] = ("", ""),
    value: str = "",
    bare: Mapping[str, str] = MappingProxyType({}),
    **slots: str,
) -> Place:
    return Place(name=name, slots=slots, read=read, target=target, of=of, value=value, bare=bare)


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
    _at("item of a dict", "self.d#['k']", "m.d#['k']", init="self.d# = {'z': 0, 'k': {V}}"),
    _at("item of a dict, asked for", "self.d#.get('k', 4)", "m.d#['k']", init="self.d# = {'z': 0, 'k': {V}}"),
    _at("item of a list", "self.l#[1]", "m.l#[1]", init="self.l# = [0, {V}]"),
    _at("item of a tuple", "self.l#[1]", value="m.l#[1]", init="self.l# = (0, {V})"),
    _at("class attribute", "self.c#", "main.Main.c#", of=("self", "c#"), bare={"fields": "pass"}, fields="c# = {V}"),
    _at(
        "class attribute, of the class", "type(self).c#", "main.Main.c#", of=("Main", "c#"), bare={"fields": "pass"},
        fields="c# = {V}"
    ),
    _at("class attribute, hidden by the instance's", "self.c#", "m.c#", fields="c# = {V}"),
    _at(
        "attribute of a base class", "self.s#.c", "main.B#.c", of=("self.s#", "c"),
        top="class B#(nn.Module):\n    c = {V}\nclass D#(B#):\n    pass", init="self.s# = D#()"
    ),
    _at(
        "attribute of a derived class", "self.s#.c", "main.D#.c", of=("self.s#", "c"),
        bare={"top": "class B#(nn.Module):\n    c = 5\nclass D#(B#):\n    pass"},
        top="class B#(nn.Module):\n    c = 5\nclass D#(B#):\n    c = {V}", init="self.s# = D#()"
    ),
    _at(
        "attribute of an object's class", "self.o#.c", "main.O#.c", of=("self.o#", "c"),
        bare={"top": "class O#:\n    pass"}, top="class O#:\n    c = {V}", init="self.o# = O#()"
    ),
    _at(
        "attribute of a metaclass", "O#.c", "main.T#.c",
        top="class T#(type):\n    c = {V}\nclass O#(metaclass=T#):\n    pass"
    ),
    _at("global", "G#", "main.G#", top="G# = {V}"),
    _at("global of its globals()", "globals()['G#']", "main.G#", top="G# = {V}"),
    _at(
        "global of another module", "helper.G#", "helper.G#", of=("helper", "G#"), bare={"helper": "pass"},
        helper="G# = {V}"
    ),
    _at(
        "global of a module of a module", "helper.conf.G#", "conf.G#", of=("helper.conf", "G#"), bare={"conf": "pass"},
        conf="G# = {V}"
    ),
    _at("imported name", "g#", "main.g#", helper="G# = {V}", top="from fuzzed.helper import G# as g#"),
    _at("global behind a function", "helper.get#()", "helper.G#", helper="G# = {V}\ndef get#():\n    return G#"),
    _at(
        "global of a third module behind a function", "helper.get#()", "conf.G#", conf="G# = {V}",
        helper="def get#():\n    return conf.G#"
    ),
    _at("member of a global dict", "conf.T#['k']", "conf.T#['k']", conf="T# = {'k': {V}}"),
    _at(
        "module's own __getattr__", "conf.lazy#", "helper.S#['lazy#']", helper="S# = {'lazy#': {V}}",
        conf="def __getattr__(name):\n    from fuzzed import helper\n    if name == 'lazy#':\n        return helper.S#[name]\n    raise AttributeError(name)"
    ),
    _at("module in sys.modules", "sys.modules['fuzzed.helper'].G#", "helper.G#", helper="G# = {V}"),
    _at(
        "closure", "self.f#()", "m.f#.__closure__[0].cell_contents",
        top="def make#(v):\n    def inner():\n        return v\n    return inner", init="self.f# = make#({V})"
    ),
    _at(
        "closure of a class", "self.s#()", "type(m.s#).forward.__closure__[0].cell_contents",
        top="def made#(v):\n    class C(nn.Module):\n        def forward(self):\n            return v\n    return C",
        init="self.s# = made#({V})()"
    ),
    _at("default value", "f#()", "main.f#.__defaults__ = ({V},)", top="D# = {V}\ndef f#(v=D#):\n    return v"),
    _at("keyword default", "f#()", "main.f#.__kwdefaults__['v']", top="D# = {V}\ndef f#(*, v=D#):\n    return v"),
    _at("default of a method", "self.g#()", top="D# = {V}", fields="def g#(self, v=D#):\n    return v"),
    _at("attribute of a function", "f#()", "main.f#.v", top="def f#():\n    return f#.v\nf#.v = {V}"),
    _at(
        "attribute of a function, read outside", "f#.v", "main.f#.v", of=("f#", "v"),
        bare={"top": "def f#():\n    return 1"}, top="def f#():\n    return 1\nf#.v = {V}"
    ),
    _at(
        "attribute of a method", "self.g#.v", "main.Main.g#.v", of=("self.g#", "v"), bare={"after": "pass"},
        fields="def g#(self):\n    return 1", after="Main.g#.v = {V}"
    ),
    _at(
        "attribute of a partial", "self.f#.v", "m.f#.v", of=("self.f#", "v"),
        bare={"init": "self.f# = functools.partial(K.multiplied)"},
        init="self.f# = functools.partial(K.multiplied)\nself.f#.v = {V}"
    ),
    _at(
        "keyword of a partial", "self.f#()", "m.f#.keywords['value']",
        init="self.f# = functools.partial(helper.same, value={V})"
    ),
    _at("argument of a partial", "self.f#()", init="self.f# = functools.partial(helper.same, {V})"),
    _at("property", "self.p#", "m.h#", fields="@property\ndef p#(self):\n    return self.h#", init="self.h# = {V}"),
    _at(
        "cached property", "self.p#", "m.__dict__['p#']",
        fields="@functools.cached_property\ndef p#(self):\n    return self.h#", init="self.h# = {V}"
    ),
    _at("descriptor", "self.p#", "main.Main.__dict__['p#'].a", fields="p# = K.Constant({V})"),
    _at(
        "object's made-up attribute", "self.o#.a", "m.o#.values['a']", of=("self.o#", "a"),
        bare={"init": "self.o# = K.Dynamic()"}, init="self.o# = K.Dynamic(a={V})"
    ),
    _at("method of an object", "self.o#.get()", "m.o#.a", init="self.o# = K.Held({V})"),
    _at("bound method", "self.f#()", "m.f#.__self__.a", init="self.f# = K.Held({V}).get"),
    _at(
        "context variable", "conf.C#.get()", "conf.C#.set({V})",
        conf="C# = contextvars.ContextVar('C#', default=None)\nC#.set({V})"
    ),
    _at("__dict__", "self.o#.__dict__['a']", "m.o#.a", init="self.o# = K.Box(); self.o#.a = {V}"),
    _at("vars()", "vars(self.o#)['a']", "m.o#.a", init="self.o# = K.Box(); self.o#.a = {V}"),
    _at("the module's __dict__", "self.__dict__['a#']", "m.a#", init="self.a# = {V}"),
    _at("iterated objects", "[o.a for o in self.o#][1]", "m.o#[1].a", init="self.o# = [K.Held({V}), K.Held({V})]"),
    _at(
        "iterated modules", "[s.a for s in self.s#][1]", "m.s#[1].a",
        init="self.s# = nn.ModuleList([nn.Module(), nn.Module()])\nfor s in self.s#:\n    s.a = {V}"
    ),
    _at(
        "named children", "dict(self.named_children())['s#'].a", "m.s#.a",
        init="self.s# = nn.Module()\nself.s#.a = {V}"
    ),
    _at("argument", "v#", params="v#", args="{V}"),
    _at("argument in a list", "v#[1]", params="v#", args="[1, {V}]"),
    _at("argument in a dict", "v#['k']", params="v#", args="{'k': {V}}"),
    _at("argument in a dataclass", "v#.size", params="v#", args="K.Config(size={V})"),
    _at("argument in an object", "v#.a", params="v#", args="K.Held({V})"),
    _at("argument in a namedtuple", "v#.size", params="v#", args="K.Pair({V})"),
    _at("argument named like generated code", "_p#", params="_p#", args="{V}"),
)  # fmt: skip

_KEYWORD = (
    _at("keyword argument", "v#", params="*, v#=3", kwargs="v#={V}"),
    _at("keywords", "kw#['v#']", params="**kw#", kwargs="v#={V}, _p0={V}"),
    _at("further arguments", "rest#[1]", params="*rest#", args="1, {V}"),
    _at("optional argument", "v#", params="v#=3", args="{V}"),
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
