"""Two objects that are one, or two."""

from __future__ import annotations

from tests.fuzz.program import Part, part


def _aliases() -> tuple[Part, ...]:
    """Two objects of a kind that are one, or two."""
    made = {
        "list": "[1, 2]",
        "dict": "{'k': 1}",
        "set": "{1, 2}",
        "deque": "collections.deque([1, 2])",
        "tensor": "torch.ones(4, dtype=torch.float64)",
        "module": "nn.Linear(4, 4, dtype=torch.float64)",
        "object": "K.Held(1)",
        "dataclass": "K.Config()",
        "equal objects": "K.Equal(1)",
        "tuple of lists": "([1],)",
        "function": "(lambda y: y)",
        "namespace": "types.SimpleNamespace(a=1)",
    }
    asked = "y = y * 2 + (3 if @a is @b else 11)"
    found = []
    for kind, text in made.items():
        two, one = f"@a = {text}\n@b = {text}", f"@a = {text}\n@b = @a"
        for first, second in ((two, one), (one, two)):
            name = f"identity / {kind} / {'distinct' if first is two else 'same'}"
            places = {
                "attributes": ("self.a#", "self.b#"),
                "attributes of an object": ("self.o#.a", "self.o#.b"),
                "items": ("self.o#['a']", "self.o#['b']"),
            }
            for place, (a, b) in places.items():
                before = (
                    ""
                    if place == "attributes"
                    else "self.o# = " + ("K.Box()\n" if "object" in place else "{}\n")
                )
                texts = [before + item.replace("@a", a).replace("@b", b) for item in (first, second)]
                change = (
                    {"other identity": texts[1].replace("self.", "m.")}
                    if first is two
                    else {"other identity": f"{b} = {text}".replace("self.", "m.")}
                )
                found.append(
                    part(
                        f"{name} / {place}",
                        {"init": texts[0], "body": asked.replace("@a", a).replace("@b", b)},
                        sources={"other identity": {"init": texts[1]}},
                        mutations=change,
                    )
                )
            found.append(
                part(
                    f"{name} / globals",
                    {"helper": first.replace("@", "A#"), "body": asked.replace("@", "helper.A#")},
                    sources={"other identity": {"helper": second.replace("@", "A#")}},
                    mutations={"other identity": f"helper.A#b = {'helper.A#a' if first is two else text}"},
                )
            )
            found.append(
                part(
                    f"{name} / attribute and global",
                    {
                        "helper": f"A# = {text}",
                        "init": "self.b# = helper.A#" if first is one else f"self.b# = {text}",
                        "body": asked.replace("@a", "helper.A#").replace("@b", "self.b#"),
                    },
                    sources={
                        "other identity": {
                            "init": f"self.b# = {text}" if first is one else "self.b# = helper.A#"
                        }
                    },
                    mutations={"other identity": f"m.b# = {text if first is one else 'helper.A#'}"},
                )
            )
            if kind not in ("module", "function", "object", "equal objects"):
                pairs = {True: f"*[{text}] * 2", False: f"{text}, {text}"}
                found.append(
                    part(
                        f"{name} / arguments",
                        {
                            "params": "a#, b#",
                            "args": pairs[first is one],
                            "body": asked.replace("@a", "a#").replace("@b", "b#"),
                        },
                        sources={"other identity": {"args": pairs[first is two]}},
                    )
                )
    return tuple(found)


IDENTITY = _aliases()
