"""Parts that ask for ranks, world sizes, groups and coordinates, in many ways; and collectives."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from random import Random

from tests.fuzz.program import Change, Part

_HELPER = """\
import torch.distributed as dist
from torch.distributed import get_rank as r#, get_world_size as w#
import torch.distributed._functional_collectives as funcol#
from torch.distributed.device_mesh import init_device_mesh as mesh_of#
def world#():
    return dist.group.WORLD
def number#():
    return r#()
class Ranked#:
    def __init__(self):
        self.rank = dist.get_rank()
        self.group = dist.group.WORLD
    @property
    def own(self):
        return dist.get_rank()
    def ask(self):
        return self.group.rank()
"""
READS = {
    "get_rank": "helper.dist.get_rank()",
    "get_rank under another name": "helper.r#()",
    "get_rank through getattr": "getattr(helper.dist, 'get_rank')()",
    "get_rank through getattr with a made-up name": "getattr(helper.dist, 'get_' + 'rank')()",
    "get_rank as an attribute": "self.fn#()",
    "get_rank in a list": "self.fns#[0]()",
    "get_rank in a partial": "self.part#()",
    "get_rank behind a function": "helper.number#()",
    "get_rank through vars": "vars(helper.dist)['get_rank']()",
    "get_rank of the package": "torch.distributed.get_rank()",
    "get_rank of distributed_c10d": "torch.distributed.distributed_c10d.get_rank()",
    "get_rank of a group": "helper.dist.get_rank(self.group#)",
    "get_node_local_rank": "helper.dist.get_node_local_rank()",
    "group.rank": "self.group#.rank()",
    "group.rank through getattr": "getattr(self.group#, 'rank')()",
    "group.rank of the world": "helper.dist.group.WORLD.rank()",
    "group.rank behind a function": "helper.world#().rank()",
    "group.rank of a local": "(lambda g: g.rank())(self.group#)",
    "group.rank as an attribute": "self.bound#()",
    "group.rank through methodcaller": "operator.methodcaller('rank')(self.group#)",
    "group in a dict": "self.groups#['g'].rank()",
    "group in an object": "self.o#.group.rank()",
    "rank in an object": "self.o#.rank",
    "rank by a property": "self.o#.own",
    "rank by a method": "self.o#.ask()",
    "rank of the subgroup": "self.sub#.rank()",
    "size of the subgroup": "self.sub#.size()",
    "group.size": "self.group#.size()",
    "get_world_size": "helper.dist.get_world_size()",
    "get_world_size under another name": "helper.w#()",
    "get_world_size of a group": "helper.dist.get_world_size(self.sub#)",
    "get_group_rank": "helper.dist.get_group_rank(self.group#, helper.dist.get_rank())",
    "get_global_rank": "helper.dist.get_global_rank(self.sub#, 0)",
    "get_process_group_ranks": "sum(helper.dist.get_process_group_ranks(self.sub#))",
    "process group's ranks, counted": "len(helper.dist.get_process_group_ranks(self.group#))",
    "name of the subgroup": "len(self.sub#.group_name) + sum(map(ord, self.sub#.group_name))",
    "name of the group": "sum(map(ord, self.group#.group_name))",
    "backend": "len(helper.dist.get_backend())",
    "is_initialized": "(3 if helper.dist.is_initialized() else 4)",
    "RANK": "int(os.environ['RANK'])",
    "LOCAL_RANK": "int(os.environ.get('LOCAL_RANK', '9'))",
    "RANK with getenv": "int(os.getenv('RANK', '9'))",
    "WORLD_SIZE": "int(os.environ['WORLD_SIZE'])",
    "mesh.get_rank": "self.mesh#.get_rank()",
    "mesh.get_local_rank": "self.mesh#.get_local_rank()",
    "mesh.get_local_rank of an axis": "self.mesh#.get_local_rank('tp')",
    "mesh.get_coordinate": "self.mesh#.get_coordinate()[0]",
    "mesh.size": "self.mesh#.size()",
    "mesh.shape": "self.mesh#.shape[0]",
    "mesh.mesh": "self.mesh#.mesh.sum()",
    "mesh.get_group": "self.mesh#.get_group().rank()",
    "mesh.get_group of an axis": "self.mesh#.get_group('tp').rank()",
    "mesh axis": "self.mesh#['tp'].get_local_rank()",
    "mesh names": "len(self.mesh#.mesh_dim_names[0])",
    "rank kept as a number": "self.n#",
    "rank in a list": "self.l#[0]",
    "rank in a closure": "self.c#()",
    "rank of the module": "helper.RANK#",
    "rank as a default": "self.d#()",
    "rank in a tensor": "self.t#.sum()",
    "rank in a branch": "(3 if helper.dist.get_rank() == 0 else 7)",
    "rank in a slice": "y[:, helper.dist.get_rank() % 2 :].sum()",
    "rank indexes": "[5, 7, 11, 13][self.group#.rank() % 4]",
    "chunk of a rank": "y.reshape(-1).chunk(2)[self.group#.rank() % 2].sum()",
    "all_reduce": "helper.funcol#.all_reduce(y, 'sum', self.group#).sum()",
    "all_reduce in the subgroup": "helper.funcol#.all_reduce(y, 'sum', self.sub#).sum()",
    "all_gather": "helper.funcol#.all_gather_tensor(y, 0, self.group#).shape[0]",
    "reduce_scatter": "helper.funcol#.reduce_scatter_tensor(torch.cat([y, y]), 'sum', 0, self.group#).shape[0]",
    "all_reduce on a mesh": "helper.funcol#.all_reduce(y, 'sum', self.mesh#).sum()",
}
_NEEDS = {
    "self.fn#(": "self.fn# = helper.dist.get_rank",
    "self.fns#": "self.fns# = [helper.dist.get_rank]",
    "self.part#": "self.part# = functools.partial(helper.dist.get_rank)",
    "self.group#": "self.group# = helper.dist.group.WORLD",
    "self.bound#": "self.bound# = helper.dist.group.WORLD.rank",
    "self.groups#": "self.groups# = {'g': helper.dist.group.WORLD}",
    "self.o#": "self.o# = helper.Ranked#()",
    "self.sub#": "self.sub# = helper.SUBS#[helper.dist.get_rank()]",
    "self.mesh#": "self.mesh# = helper.mesh#",
    "self.n#": "self.n# = helper.dist.get_rank()",
    "self.l#": "self.l# = [helper.dist.get_rank()]",
    "self.c#": "self.c# = (lambda v: lambda: v)(helper.dist.get_rank())",
    "self.d#": "self.d# = main_default#(helper.dist.get_rank())",
    "self.t#": "self.t# = torch.full((2,), helper.dist.get_rank())",
}  # fmt: skip
_GLOBALS = {
    "RANK#": "RANK# = dist.get_rank()\n",
    "self.sub#": "SUBS# = [dist.new_group([r]) for r in range(dist.get_world_size())]\n",
    "self.mesh#": "mesh# = mesh_of#('cpu', (dist.get_world_size(),), mesh_dim_names=('tp',))\n",
}
"""Made once a process: each group has a name of its own."""
_CHANGES = (
    Change(name="rank 1 of 2", rank=(1, 2)),
    Change(name="rank 1 of 2", rank=(1, 2)),
    Change(name="rank 1 of 4", rank=(1, 4)),
    Change(name="rank 3 of 4", rank=(3, 4)),
    Change(name="rank 0 of 4", rank=(0, 4)),
)


def ranked(rng: Random) -> Part:
    """A part that asks for one thing of the process group."""
    name = rng.choice(list(READS))
    prime = rng.choice([3, 7, 13])
    return ranked_reading(
        name,
        rng.choice(
            [
                f"y = y + {prime} * (READ)",
                f"n# = READ\ny = y * {prime} + n#",
                f"y = helper.taken(y, {prime} * (READ))",
            ]
        ),
    )


def ranked_reading(name: str, body: str = "y = y + READ") -> Part:
    """The part that asks for the named thing; in ``body`` the word READ stands for it."""
    read = READS[name]
    init = [statement for needed, statement in _NEEDS.items() if needed in read]
    slots = {
        "helper": _HELPER + "".join(text for needed, text in _GLOBALS.items() if needed in read),
        "top": "def main_default#(n):\n    def inner(v=n):\n        return v\n    return inner",
        "init": "\n".join(init) or "pass",
        "body": body.replace("READ", read),
    }
    return Part(name=f"ranks / {name}", slots=slots, changes=_CHANGES, ranks=True)
