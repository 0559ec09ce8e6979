"""Static-kernel packages: installed into CANN where TorchAir would not do it.

Facts relied on (``static_kernel.py`` of torchair and npugraph_ex in torch_npu 2.13.0):

* ``op_compiler`` makes ``static_kernel_<time>_<pid>.run`` in
  ``<directory of compiled_module>/{aclnn_static_shape_kernel,static_kernel_compile}_outputs/ts..._outputs/``
  (the first for torchair, the second for npugraph_ex). A node's local rank 0 makes one for all of its ranks.
* A load looks there, and local rank 0 runs the packages of the first such directory that has any, as a
  program without arguments, with ``-q`` from CANN 9.1 on; other directories are not looked at. Where the
  version of CANN or the deterministic level differs from those of the compile it only warns: it installs
  nothing, and compiles nothing. Without packages it compiles, which takes minutes. Within one process a
  package that it ran once is not run again (``_installed_run_pkgs``), whatever happened to the tree since.
* The package lays its kernels out in ``opp/static_kernel/ai_core/<name without .run>/`` below CANN's
  directory, ``uninstall.sh`` among them; of one kernel in two packages the one installed last counts (CANN's
  document on static kernels). TorchAir runs that script when its process ends, of what it installed itself.
* From CANN 9.1 on, where torch_npu has ``_aclnn_reselect_static_kernel_with_path``, npugraph_ex installs for
  its own processes only, into ``--install-path=<directory>``, and removes that directory at its end.

A package is a program of the launch that made it. So it is run only after its bytes were verified, under its
own name, from a private directory, through ``bash``: files of the cache directory are not executable.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from cache_store.digests import Digest, copy_and_digest
from cache_store.errors import UnusableCache
from cache_store.node.private_files import (
    create_private,
    discard_tree,
    make_private_directories,
    open_private,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from cache_store.node.single_flight import single_flight
from worker.installed_kernels import STAGING, InstalledKernels
from worker.values import Value

_log = logging.getLogger(__name__)

RECORDS = ".static_kernels"
INSTALL_TIMEOUT_S = 600.0
_QUIET_FROM = (9, 1)
_SHOWN_CHARS = 300
_UNKNOWN = frozenset({"", "none"})  # as the environment says it
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,120}\.run", re.ASCII)

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""As `subprocess.run`."""


class Package(Value):
    """A static-kernel package.

    Attributes:
        path: where its bytes lie, in a private file of any name.
        name: its own name, such as ``static_kernel_250924103634186357_988879.run``.
        digest: what the bytes must be.
        cann: the CANN that it was made with, as the environment of a launch says it.
        soc: the model of the NPU that it was made for, likewise.
    """

    path: Path
    name: str
    digest: Digest
    cann: str
    soc: str


class CannTree(Value):
    """The CANN of this node.

    Attributes:
        home: its directory, as ``ASCEND_HOME_PATH`` names it.
        release: such as ``9.1.0``.
        cann: what the environment says of it.
        soc: what the environment says of the NPUs.
        install_path: where processes of their own install to, instead of the tree; None for the tree.
    """

    home: Path
    release: str
    cann: str
    soc: str
    install_path: Path | None = None


class Installation(Value):
    """What became of one package.

    Attributes:
        name: its name.
        status: ``installed`` now; ``there`` already; ``refused``, because it is not of this node's CANN or
            NPU, or not what it must be; ``failed``.
        reason: why not; empty for the first two.
    """

    name: str
    status: Literal["installed", "there", "refused", "failed"]
    reason: str = ""


def install(
    packages: Sequence[Package],
    tree: CannTree,
    cache_root: Path,
    *,
    timeout_s: float = INSTALL_TIMEOUT_S,
    run: Run = subprocess.run,
) -> tuple[Installation, ...]:
    """Install the packages that a CANN does not have, one process of this node at a time.

    Nothing is raised: without its static kernels a model computes the same, more slowly.

    Args:
        packages: in the order in which they are to be installed.
        tree: this node's CANN.
        cache_root: the cache directory, which remembers what was installed where.
        timeout_s: the longest that one package may take.
        run: starts a program.
    """
    records = cache_root / RECORDS
    results: list[Installation] = []
    try:
        with single_flight(records, timeout_s=timeout_s * max(1, len(packages))):
            sweep_debris(records, STAGING)
            record = InstalledKernels(records, tree.install_path or tree.home, tree.cann)
            results.extend(
                _install(package, tree, record, timeout_s=timeout_s, run=run) for package in packages
            )
    except UnusableCache as error:
        done = {result.name for result in results}
        results += [_failed(package, str(error)) for package in packages if package.name not in done]
    for result in results:
        if result.status in ("refused", "failed"):
            _log.warning("Static kernels %s are not installed: %s", result.name, result.reason)
        else:
            _log.info("Static kernels %s: %s", result.name, result.status)
    return tuple(results)


def tree_here() -> CannTree | None:
    """The CANN of this node; None without one."""
    from worker.ascend.places import here
    from worker.ascend.versions import cann_of
    from worker.environment import environment

    found = cann_of(here())
    if not found.home:
        return None
    facts = environment()
    return CannTree(
        home=Path(found.home), release=found.release, cann=facts["cann"], soc=facts["accelerator"]
    )


def arguments(tree: CannTree) -> tuple[str, ...]:
    """What TorchAir gives a package besides its name."""
    path = (f"--install-path={tree.install_path}",) if tree.install_path is not None else ()
    return (*path, *(("-q",) if _release(tree.release) >= _QUIET_FROM else ()))


def installed_directory(package_name: str, tree: CannTree) -> Path | None:
    """Where a package's kernels lie; None where they do not."""
    below = f"opp/static_kernel/ai_core/{package_name.removesuffix('.run')}"
    # TorchAir looks through the neighbours too: `latest` may be a directory of links to a version's packages.
    roots = [tree.install_path] if tree.install_path is not None else [tree.home, *_neighbours(tree.home)]
    found = (root / below for root in roots if (root / below / "uninstall.sh").is_file())
    return next(found, None)


def _install(
    package: Package, tree: CannTree, record: InstalledKernels, *, timeout_s: float, run: Run
) -> Installation:
    if reason := _mismatch(package, tree):
        return Installation(name=package.name, status="refused", reason=reason)
    if (
        record.has(package.name, package.digest.sha256)
        and installed_directory(package.name, tree) is not None
    ):
        return Installation(name=package.name, status="there")
    staging = record.directory / f"{STAGING}{temporary_name()}"
    try:
        if reason := _stage(package, staging):
            return Installation(name=package.name, status="refused", reason=reason)
        reason = _run(staging / package.name, tree, timeout_s=timeout_s, run=run)
        if not reason and installed_directory(package.name, tree) is None:
            reason = f"it ended well, but left no kernels in {tree.install_path or tree.home}"
        if reason:
            return _failed(package, reason)
        record.add(package.name, package.digest.sha256)
    except UnusableCache as error:
        return _failed(package, str(error))
    finally:
        discard_tree(staging)
    return Installation(name=package.name, status="installed")


def _mismatch(package: Package, tree: CannTree) -> str:
    """Why a package is not for this node; all that differs."""
    if _NAME.fullmatch(package.name) is None:
        return f"{package.name!r} is no name of a package"
    pairs = (("CANN", package.cann, tree.cann), ("NPU", package.soc, tree.soc))
    return "; ".join(
        f"made for {what} {made or 'of unknown version'}, this node has {here or 'none'}"
        for what, made, here in pairs
        if made != here or here in _UNKNOWN
    )


def _stage(package: Package, staging: Path) -> str:
    """Copy a package under its own name; why it must not be run, empty for nothing."""
    target = staging / package.name
    with os_errors_are_unusable("file", target):
        make_private_directories(staging)
        with open_private(package.path) as source, create_private(target) as file:
            actual = copy_and_digest(source, file)
    return "" if actual == package.digest else f"expected {package.digest}, found {actual}"


def _run(package: Path, tree: CannTree, *, timeout_s: float, run: Run) -> str:
    """Run a package; what went wrong, empty for nothing."""
    environ = {**os.environ, "ASCEND_HOME_PATH": str(tree.home)}
    command = ["bash", str(package), *arguments(tree)]
    try:
        if tree.install_path is not None:
            make_private_directories(tree.install_path)
        done = run(
            command, cwd=package.parent, env=environ, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {timeout_s:g} s"
    except OSError as error:
        return f"it cannot be run: {error}"
    if done.returncode == 0:
        return ""
    said = " ".join((done.stderr or done.stdout or "nothing").split())[-_SHOWN_CHARS:]
    return f"exit status {done.returncode}: {said}"


def _failed(package: Package, reason: str) -> Installation:
    return Installation(name=package.name, status="failed", reason=reason)


def _neighbours(home: Path) -> Iterable[Path]:
    try:
        return sorted(path for path in home.parent.iterdir() if path.is_dir() and path != home)
    except OSError:
        return ()


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
