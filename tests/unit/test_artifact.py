"""Artifacts: their bytes and what is refused; their frames, which work in other processes."""

from __future__ import annotations

import ast
import dataclasses
import errno
import hashlib
import json
import os
import pickle
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils as originals
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.made_artifacts import GUARDS, make_artifact
from tests.support.small_models import Cached, Plain
from tests.support.tracing import bound, compiled, traced
from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.cache_store.errors import UnusableCache, UnwritableDisk
from warmrank.inference import cache_compile, readable_cache
from warmrank.orchestrator.inspect.store_contents import verify_cache
from warmrank.worker.compile.compiler import portable_frame
from warmrank.worker.compile.readable import origins_in, render
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import ArtifactCorrupt
from warmrank.worker.runtime.artifact import ABOUT, FORMAT, Artifact, ArtifactFile, Frame, TracedSource, parse
from warmrank.worker.runtime.files import provenance, save, to_bytes
from warmrank.worker.runtime.find import StoredArtifact, function_of, with_files
from warmrank.worker.runtime.variant import StandIns, bind
from warmrank.worker.torch_private.tracing import Trace

pytestmark = pytest.mark.usefixtures("no_grad")

NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name != "frame.code")
SECTIONS = st.dictionaries(NAMES, st.binary(max_size=64), max_size=4)
COMPONENTS = st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4)
DATA = to_bytes(make_artifact())


def test_disk_too_full_for_a_directory_is_named_also_for_what_one_partition_keeps(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(UnwritableDisk, match="No space left"):
        save(tmp_path / "f", make_artifact(), {}, withheld=True)


@given(sections=SECTIONS, components=COMPONENTS, name=st.text(max_size=20))
def test_artifact_round_trips(sections: dict[str, bytes], components: dict[str, str], name: str) -> None:
    artifact = make_artifact(sections=sections, components=components, name=name)
    assert parse(to_bytes(artifact), "here") == artifact


def test_artifact_is_equal_bytes_whatever_the_order_of_its_parts() -> None:
    sections = {"b": b"2", "a": b"1"}
    turned = dict(reversed(sections.items()))
    one = make_artifact(sections=sections, components={"x": "1", "y": "2"})
    other = make_artifact(sections=turned, components={"y": "2", "x": "1"})
    assert to_bytes(one) == to_bytes(other)


@given(position=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_artifact_with_one_flipped_bit_is_refused(position: int, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= 1 << bit
    with pytest.raises(ArtifactCorrupt):
        parse(bytes(damaged), "here")


NEWER = DATA.replace(f" {FORMAT} ".encode(), f" {FORMAT + 1} ".encode(), 1)
OTHER_KIND, TORN = "does not begin with a warmrank artifact's first line", "do not match the digest"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", OTHER_KIND),
        (b"\n", OTHER_KIND),
        (b"PK\x03\x04", OTHER_KIND),
        (f"warmrank-artifact {FORMAT}\n".encode(), OTHER_KIND),
        (DATA[:20], OTHER_KIND),
        (DATA[: len(DATA) // 2], TORN),
        (DATA[:-1], TORN),
        (NEWER, f"it has format {FORMAT + 1}, this version reads {FORMAT}"),
    ],
)
def test_file_that_is_no_whole_artifact_is_refused_by_place(data: bytes, words: str) -> None:
    with pytest.raises(ArtifactCorrupt, match=f"cache/decode is no usable artifact: .*{words}") as raised:
        parse(data, "cache/decode")
    assert raised.value.where == "cache/decode"


def test_artifacts_of_other_versions_are_no_faults_of_a_cache_unless_they_are_damaged(tmp_path: Path) -> None:
    for name, data in (("own", DATA), ("newer", NEWER), ("torn", NEWER[:-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "compiled_module").write_bytes(data)
        (tmp_path / name / "compiled_module").chmod(0o600)
    found = verify_cache(tmp_path)
    (fault,) = found.faults
    assert TORN in fault
    assert (found.num_artifacts, found.num_of_other_versions) == (3, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("guards"),
        lambda header: header.update(sections=[]),
        lambda header: header.update(sections=[["frame.code", 1]]),
        lambda header: header.update(guards=[]),
        lambda header: header["guards"].update(nodes=[[0]]),
        lambda header: header["guards"].update(sources=[["code"]]),
    ],
    ids=["no guards", "no sections", "short sections", "guards a list", "short node", "short source"],
)
def test_artifact_whose_header_makes_no_sense_is_refused(change: Any) -> None:
    _, text, raw = DATA.split(b"\n", 2)
    header = json.loads(text)
    change(header)
    body = json.dumps(header).encode() + b"\n" + raw
    line = f"warmrank-artifact {FORMAT} {hashlib.sha256(body).hexdigest()}\n"
    with pytest.raises(ArtifactCorrupt, match="its header cannot be read"):
        parse(line.encode() + body, "here")


@pytest.mark.parametrize(
    "changed",
    [
        {"components": {"engine": "graph 2"}},
        {"name": "M.g(x)"},
        {"function": "1" * 32},
        {"guards": replace(GUARDS, asked=())},
        {
            "guards": replace(
                GUARDS, sources=(TracedSource(kind="code", module="m", name="M.f", digest="1" * 32),)
            )
        },
    ],
    ids=["request", "name", "function", "guards", "source"],
)
def test_provenance_changes_with_what_determines_the_bytes(changed: dict[str, Any]) -> None:
    assert provenance(make_artifact(**changed)) != provenance(make_artifact())


QUOTES = 'it\'s "so" \\ \n \t \r \x0c \u2028 \u00e9 \0 \x85 \'\'\' """ #'
PARTS = ["META", "REQUEST", "INPUTS", "PARAMETERS", "OUTPUTS", "GUARDS", "CAPTURE", "FILES"]


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compiled(Cached().store, torch.ones(2, 4))


@pytest.fixture(scope="module")
def path(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(artifact, tmp_path_factory.mktemp("cache"))


def saved(artifact: Artifact, directory: Path) -> Path:
    return add_variant(directory / "store", to_bytes(artifact))


def literals(text: str) -> dict[str, Any]:
    """The values that the text assigns."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def test_text_is_python_that_says_what_a_person_looks_for(path: Path) -> None:
    text = render(path)
    found = literals(text)
    assert list(found) == PARTS
    assert found["META"]["name"] == "Cached.store(x)"
    assert found["META"]["size_bytes"] == path.stat().st_size
    assert found["REQUEST"] == {"made for": "a test"}
    origin = r"# tests\.support\.small_models:\d+ Cached\.store: self\.cache\[: x\.shape\[0\]\]\.copy_\(x\)"
    assert re.search(rf"\n +{origin}\n +\w+ = .*aten_slice", text)
    for line in (
        "source tests.support.small_models:Cached.store is ",
        "deterministic algorithms is False",
        "x is a torch.float32 tensor of sizes ['*', 4] on cpu",
        "x.size()[0] <= 8",
        "'can be captured': 'yes'",
        "LOAD_GLOBAL",
        "    def graph(arg0_1",
    ):
        assert line in text


def test_hostile_text_everywhere_is_still_python(artifact: Artifact, tmp_path: Path) -> None:
    known = origins_in(artifact.sections)
    lines = [f"{line}{QUOTES}" for line in known.lines]
    about = {"lines": lines, "operators": known.operators}
    hostile = replace(
        artifact,
        name=QUOTES,
        components={QUOTES: QUOTES},
        guards=replace(artifact.guards, ambient={QUOTES: QUOTES}, shapes=((f"{QUOTES} < 1", ()),)),
        sections={**artifact.sections, ABOUT: json.dumps(about).encode()},
    )
    found = literals(render(saved(hostile, tmp_path)))
    assert found["META"]["name"] == QUOTES
    assert found["REQUEST"] == {QUOTES: QUOTES}
    assert f"{QUOTES} is {QUOTES}" in found["GUARDS"]


def test_readable_cache_does_not_write_through_a_link(path: Path, tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link.py"
    victim.write_text("mine")
    link.symlink_to(victim)
    with pytest.raises(UnusableCache, match="a symbolic link"):
        readable_cache(path, print_output=False, file=link)
    assert victim.read_text() == "mine"


def assert_refused(file: Path, error: type[Exception], words: str) -> None:
    """The error says what is wrong, and nothing is written, moved or removed."""
    before = sorted(file.parent.iterdir())
    with pytest.raises(error, match=words):
        readable_cache(file, file=file.parent / "out.py")
    assert sorted(file.parent.iterdir()) == before


def private(file: Path, data: bytes) -> Path:
    file.write_bytes(data)
    file.chmod(0o600)
    return file


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_of_torchair_is_refused_and_not_unpickled(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = private(tmp_path / "compiled_module", pickle.dumps(Bomb(), protocol))
    assert_refused(file, ArtifactCorrupt, "a pickle, as TorchAir writes them, and warmrank unpickles nothing")


def test_file_that_others_could_have_written_is_refused(path: Path, tmp_path: Path) -> None:
    file = private(tmp_path / "compiled_module", path.read_bytes())
    file.chmod(0o620)
    assert_refused(file, UnusableCache, "mode 0620.*chmod 600")


def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert_refused(tmp_path / "pipe", UnusableCache, "regular file")


def test_missing_file_that_comes_meanwhile_is_not_moved_aside(tmp_path, monkeypatch):
    kernels = private(tmp_path / "kernels", b"code")
    file = ArtifactFile(name=kernels.name, sha256=hashlib.sha256(b"code").hexdigest(), size_bytes=4)
    artifact = replace(make_artifact(), files=(file,))
    stored = StoredArtifact(artifact=artifact, path=tmp_path / "compiled_module", sha256="", size_bytes=0)
    reasons: list[str] = []
    with monkeypatch.context() as before_it_came:
        before_it_came.setattr(Path, "exists", lambda _path: False)
        assert with_files(stored, reasons) is None
    assert reasons == ["missing: kernels"]
    assert with_files(stored, reasons) is not None


class Doubling(torch.nn.Module):
    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def config_with(section: str, **values: Any) -> CompilerConfig:
    config = CompilerConfig()
    for name, value in values.items():
        setattr(getattr(config.debug, section), name, value)
    return config


def plain(config: CompilerConfig, tmp_path: Path) -> Any:
    torch.manual_seed(0)
    return cache_compile(Plain().affine, config=config, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("kind", ["py", "txt"])
def test_graph_dump_is_written_when_compiled(tmp_path: Path, kind: str) -> None:
    dumps = tmp_path / "dumps"
    config = config_with("graph_dump", type=kind, path=str(dumps))
    plain(config, tmp_path)(torch.ones(2, 4))
    (file,) = dumps.iterdir()
    assert file.name.startswith("dynamo_original_graph_rank_0_pid_")
    assert file.suffix == f".{kind}"
    text = file.read_text()
    assert "aten.linear.default" in text
    if kind == "py":
        ast.parse(text)


def test_data_dump_writes_the_result_of_every_operator_on_every_call(tmp_path: Path) -> None:
    config = config_with("data_dump", type="npy", path=str(tmp_path / "data"))
    function = plain(config, tmp_path)
    for value in (1.0, 2.0):
        x = torch.full((2, 4), value)
        result = function(x)
        steps = tmp_path / "data" / "worldsize1_global_rank0" / "Plain.affine" / str(int(value) - 1)
        found = {file.name: np.load(file) for file in sorted(steps.iterdir())}
        assert list(found) == [
            "00000-linear-aten.linear.default.OUTPUT.0.npy",
            "00001-mul-aten.mul.Tensor.OUTPUT.0.npy",
        ]
        linear, scaled = found.values()
        np.testing.assert_array_equal(linear, function.module.linear(x).numpy())
        np.testing.assert_array_equal(scaled, result.numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.complex64])
def test_data_dump_keeps_values_of_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    config = config_with("data_dump", type="npy", path=str(tmp_path / "data"))
    function = cache_compile(Doubling().doubled, config=config, cache_dir=tmp_path / "cache")
    function(torch.ones(3, dtype=dtype))
    (file,) = (tmp_path / "data").rglob("*.npy")
    assert np.load(file).tolist() == [2, 2, 2]


ROWS = torch.arange(8.0).reshape(2, 4)


class KeywordOnly(nn.Module):
    def forward(self, x: torch.Tensor, /, y: int = 3, *, z: float = 0.5) -> torch.Tensor:
        return x * y + z


def frame_of(method: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Frame, Trace]:
    trace = traced(method, *args, **kwargs)
    return portable_frame(trace, function_of(bound(method))), trace


def test_error_that_passes_through_a_frame_can_be_printed() -> None:
    def failing(*inputs: Any) -> Any:
        msg = "the kernel failed"
        raise RuntimeError(msg)

    frame, _ = frame_of(Plain().affine, ROWS)
    function = bind(frame, function_of(bound(Plain().affine)), failing)
    with pytest.raises(RuntimeError) as raised:
        function(Plain(), ROWS)
    text = "".join(traceback.format_exception(raised.value))
    assert '"<warmrank frame>", line 1, in affine' in text
    assert text.endswith("RuntimeError: the kernel failed\n")


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1,), {"x": 2}), ((ROWS, 3, 0.5), {})])
def test_frame_refuses_arguments_that_the_method_does_not_take(args, kwargs):
    module = KeywordOnly()
    frame, trace = frame_of(module.forward, ROWS)
    function = bind(frame, function_of(bound(module.forward)), trace.lowered.graph)
    with pytest.raises(TypeError, match=r"forward\(\)"):
        function(module, *args, **kwargs)


STAND_INS = StandIns("torch._dynamo.utils")
TENSOR = torch.arange(12.0).reshape(3, 4)[1:]


@dataclasses.dataclass
class Options:
    width: int = 1


class Guarded:
    """Its own ``__setattr__`` is what must be gone around."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(name)


def started(count: int) -> Any:
    iterator = iter((10, 11, 12, 13))
    for _ in range(count):
        next(iterator)
    return iterator


CALLS: list[tuple[str, Callable[[], tuple[Any, ...]]]] = [
    ("object_new", lambda: (Options,)),
    ("dict_getitem", lambda: ({"a": 1}, "a")),
    ("list_getitem", lambda: ([1, 2], 1)),
    ("iter_next", lambda: (iter([5]),)),
    ("dataclass_fields", lambda: (Options(),)),
    ("call_size", lambda: (TENSOR, 1)),
    ("call_stride", lambda: (TENSOR, 0)),
    ("call_storage_offset", lambda: (TENSOR,)),
    ("dict_keys_getitem", lambda: ({"a": 1, "b": 2}, 1)),
    ("set_getitem", lambda: ({7}, 0)),
    ("tuple_iterator_getitem", lambda: (started(1), 1)),
]


def comparable(value: Any) -> Any:
    return vars(value) if isinstance(value, Options) else value


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_stand_in_gives_what_the_original_gives(name: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
    found = getattr(STAND_INS, name)(*arguments())
    expected = getattr(originals, name)(*arguments())
    assert type(found) is type(expected)
    assert comparable(found) == comparable(expected)


def test_stand_in_sets_and_deletes_an_attribute_past_the_class() -> None:
    instance = Guarded()
    STAND_INS.object_setattr_ignore_descriptor(instance, "a", 1)
    assert vars(instance) == {"a": 1}
    STAND_INS.object_delattr_ignore_descriptor(instance, "a")
    assert vars(instance) == {}
