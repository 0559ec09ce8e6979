"""How fast is the object store's backend beside boto3, and what does a dead server cost?

Small objects: 1,015 files of at most 64 KiB, put from private files and got with every byte hashed, by both
clients in turn, 16 at a time. Two servers: one made for this benchmark, of a hundred lines, and moto, which
is complete and so slow that the ratio there tells of the server. Ours also verifies and compresses what it
puts. A large object: throughput and peak memory. A dead server: seconds until
the first error; a client that takes longer than ``CAP_S`` is stopped there.

Run: ``python benchmarks/store_s3.py [--small] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.object_store import ObjectBackend
from warmrank.cache_store.digests import digest_file
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import blob_name

QUICK_SERVER = Path(__file__).resolve().parent / "servers" / "quick_s3.py"
BUCKET = "benchmark"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
NUM_THREADS = 16
CAP_S = 30.0
KINDS = ("like code", "random")
WORDS = [
    f"%{word}{number} = aten.{word}(" for word in ("view", "mm", "add", "mul", "cat") for number in range(400)
]


def main() -> None:
    """Measure, print the table, write it as JSON where wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="sizes for CI")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "ENDPOINT", "PATH"))
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if options.child:
        print(json.dumps(CHILDREN[options.child[0]](*options.child[1:])))
        return
    rows = measure(num_files=100 if options.small else 1015, large_mib=32 if options.small else 512, turns=3)
    for name, value in rows.items():
        print(f"{name:<66}{value:>12.3f}")
    if options.json:
        from importlib.metadata import version

        packages = {name: version(name) for name in ("obstore", "zstandard", "boto3", "moto")}
        place = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
        options.json.write_text(json.dumps({"rows": rows, "place": {**place, **packages}}, indent=2) + "\n")


def measure(*, num_files: int, large_mib: int, turns: int) -> dict[str, float]:
    """All figures by name."""
    rows: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory, server(str(QUICK_SERVER)) as quick:
        for kind in KINDS:
            files = small_files(Path(directory) / kind, num_files, shrinks=kind == "like code")
            rows.update(small_rows(f"quick server, {kind}", quick, files, turns))
        with server("-m", "moto.server", "--host", "127.0.0.1", "--port") as moto:
            rows.update(small_rows("moto, random", moto, files[: num_files // 4], turns))
        for kind in KINDS:
            path = large_file(Path(directory) / "large", large_mib, shrinks=kind == "like code")
            rows.update(large_rows(f"{large_mib} MiB {kind}", quick, path))
    rows.update(dead_rows())
    return rows


@contextlib.contextmanager
def server(*command: str) -> Iterator[str]:
    """The endpoint of a server in a process of its own, started by a command that ends with its port."""
    port = free_port()
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, *command, str(port)], **quiet) as process:
        try:
            wait_for(port)
            endpoint = f"http://127.0.0.1:{port}"
            boto3_client(endpoint).create_bucket(Bucket=BUCKET)
            yield endpoint
        finally:
            process.kill()


def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_for(port: int, *, timeout_s: float = 60.0) -> None:
    """Wait until somebody listens."""
    deadline = perf_counter() + timeout_s
    while perf_counter() < deadline:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        sleep(0.05)
    raise TimeoutError(f"no server at port {port} within {timeout_s} s")


def content(size: int, *, shrinks: bool) -> bytes:
    """Bytes that zstd makes about four times smaller, as compiler output, or not at all."""
    if not shrinks:
        return os.urandom(size)
    words = " ".join(random.choices(WORDS, k=size // 16 + 1))  # noqa: S311 - text, not a secret
    return words.encode()[:size]


def small_files(directory: Path, count: int, *, shrinks: bool) -> list[NewFile]:
    """Private files of many sizes."""
    sizes = random.Random(0)  # noqa: S311 - sizes, not secrets
    paths = [directory / str(number) for number in range(count)]
    directory.mkdir()
    for path in paths:
        path.touch(mode=0o600)
        path.write_bytes(content(int(2 ** sizes.uniform(8, 16)), shrinks=shrinks))
    return [new_blob(path) for path in paths]


def large_file(path: Path, mib: int, *, shrinks: bool) -> Path:
    """A private file of so many MiB."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    piece = content(1 << 20, shrinks=shrinks)
    with path.open("wb") as file:
        for number in range(mib):
            file.write(number.to_bytes(8, "big") + piece[8:])
    return path


def new_blob(path: Path) -> NewFile:
    """A blob of a file's bytes."""
    digest = digest_file(path)
    return NewFile(name=blob_name(digest.sha256), source=path, expected=digest)


def small_rows(title: str, endpoint: str, files: Sequence[NewFile], turns: int) -> dict[str, float]:
    """Objects a second of both clients, which take turns."""
    seconds: dict[str, list[float]] = {}
    boto3 = boto3_client(endpoint)
    for _ in range(turns):
        prefix = uuid.uuid4().hex
        backend = ObjectBackend(f"s3://{BUCKET}/{prefix}", options={"endpoint": endpoint})
        for name, call in small_calls(backend, boto3, prefix, files).items():
            seconds.setdefault(name, []).append(timed(call))
    speed = {name: len(files) / statistics.median(values) for name, values in seconds.items()}
    rows = {f"{title}: {name} (objects/s)": value for name, value in speed.items()}
    for verb in ("put", "get"):
        rows[f"{title}: {verb}, ours / boto3"] = speed[f"{verb}, ours"] / speed[f"{verb}, boto3"]
    stored = sum(info.stored_bytes for info in backend.stat([file.name for file in files]).values())
    rows[f"{title}: bytes / bytes stored"] = sum(file.expected.size_bytes for file in files) / stored
    return rows


def small_calls(
    backend: ObjectBackend, boto3: Any, prefix: str, files: Sequence[NewFile]
) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""

    def get(file: NewFile) -> None:
        with backend.open(file.name) as stream:
            hashed(stream.read(), file)

    return {
        "put, ours": lambda: backend.put_new(files),
        "put, boto3": lambda: each(lambda file: boto3_put(boto3, prefix, file), files),
        "get, ours": lambda: each(get, files),
        "get, boto3": lambda: each(lambda file: boto3_get(boto3, prefix, file), files),
        "look, ours": lambda: backend.stat([file.name for file in files]),
    }


def boto3_client(endpoint: str) -> Any:
    """A client of boto3 with as many connections as threads, otherwise as it comes."""
    import boto3  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]

    config = Config(max_pool_connections=NUM_THREADS)
    return boto3.client("s3", endpoint_url=endpoint, config=config)


def each(call: Callable[[NewFile], object], files: Sequence[NewFile]) -> None:
    """Call for each file, 16 at a time."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(call, files))


def boto3_put(client: Any, prefix: str, file: NewFile) -> None:
    """As one would with boto3: the file's bytes, unverified."""
    with file.open() as source:
        client.put_object(Bucket=BUCKET, Key=f"boto3/{prefix}/{file.name}", Body=source.read())


def boto3_get(client: Any, prefix: str, file: NewFile) -> None:
    """As ours: all bytes, hashed."""
    hashed(client.get_object(Bucket=BUCKET, Key=f"boto3/{prefix}/{file.name}")["Body"].read(), file)


def hashed(data: bytes, file: NewFile) -> None:
    """Check what was got."""
    check(hashlib.sha256(data).hexdigest(), file)


def check(sha256: str, file: NewFile) -> None:
    """Stop where other bytes came back than were sent."""
    if sha256 != file.expected.sha256:
        raise RuntimeError(f"{file.name} came back changed")


def large_rows(title: str, endpoint: str, path: Path) -> dict[str, float]:
    """MiB a second and MiB of memory on top of the imports, each in a process of its own."""
    rows = {}
    for what in ("ours", "boto3"):
        for name, value in child(f"large_{what}", endpoint, str(path)).items():
            rows[f"{title}: {what}, {name}"] = value
    return rows


def large_ours(endpoint: str, path: str) -> dict[str, float]:
    """Put and get one large blob."""
    file = new_blob(Path(path))
    backend = ObjectBackend(f"s3://{BUCKET}/{uuid.uuid4().hex}", options={"endpoint": endpoint})

    def get() -> None:
        hasher = hashlib.sha256()
        with backend.open(file.name) as stream:
            while chunk := stream.read(1 << 20):
                hasher.update(chunk)
        check(hasher.hexdigest(), file)

    return large_figures(file.expected.size_bytes, lambda: backend.put_new([file]), get)


def large_boto3(endpoint: str, path: str) -> dict[str, float]:
    """The same with boto3's transfer manager, which neither verifies nor compresses."""
    client = boto3_client(endpoint)
    key = uuid.uuid4().hex

    def get() -> None:
        hasher = hashlib.sha256()
        body = client.get_object(Bucket=BUCKET, Key=key)["Body"]
        for chunk in iter(lambda: body.read(1 << 20), b""):
            hasher.update(chunk)

    size_bytes = Path(path).stat().st_size
    return large_figures(size_bytes, lambda: client.upload_file(path, BUCKET, key), get)


def large_figures(size_bytes: int, put: Callable[[], object], get: Callable[[], object]) -> dict[str, float]:
    """Speed and memory of a put and a get."""
    before_mib = peak_memory_mib()
    mib = size_bytes / (1 << 20)
    put_s, get_s = timed(put), timed(get)
    grown_mib = peak_memory_mib() - before_mib
    return {"put (MiB/s)": mib / put_s, "get (MiB/s)": mib / get_s, "peak memory (MiB)": grown_mib}


def peak_memory_mib() -> float:
    """Most memory this process ever had; `getrusage` would tell its parent's where that was more."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def dead_rows() -> dict[str, float]:
    """Seconds until a client says that nobody is there."""
    rows = {}
    for what in ("ours", "boto3"):
        refused = f"http://127.0.0.1:{free_port()}"
        rows[f"dead server, refused: {what} (s)"] = child(f"dead_{what}", refused, "")["s"]
        with socket.create_server(("127.0.0.1", 0)) as listening:
            silent = f"http://127.0.0.1:{listening.getsockname()[1]}"
            seconds = child(f"dead_{what}", silent, "")["s"]
        rows[f"dead server, silent: {what} (s, stopped at {CAP_S:.0f})"] = seconds
    return rows


def dead_ours(endpoint: str, _: str) -> dict[str, float]:
    """Open a store."""

    def open_store() -> None:
        with contextlib.suppress(StoreUnavailable):
            ObjectBackend(f"s3://{BUCKET}/x", options={"endpoint": endpoint})

    return {"s": timed(open_store)}


def dead_boto3(endpoint: str, _: str) -> dict[str, float]:
    """Get an object, with boto3's own time-outs and retries."""
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

    client = boto3_client(endpoint)

    def get() -> None:
        with contextlib.suppress(BotoCoreError):
            client.get_object(Bucket=BUCKET, Key="x")

    return {"s": timed(get)}


CHILDREN = {
    "large_ours": large_ours,
    "large_boto3": large_boto3,
    "dead_ours": dead_ours,
    "dead_boto3": dead_boto3,
}


def child(what: str, endpoint: str, path: str) -> dict[str, float]:
    """Figures of a process of its own, which is stopped at ``CAP_S`` where it waits for a dead server."""
    command = [sys.executable, __file__, "--child", what, endpoint, path]
    limit_s = CAP_S if what.startswith("dead") else None
    try:
        output = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=limit_s
        ).stdout
    except subprocess.TimeoutExpired:
        return {"s": CAP_S}
    figures: dict[str, float] = json.loads(output)
    return figures


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = perf_counter()
    call()
    return perf_counter() - started


if __name__ == "__main__":
    main()
