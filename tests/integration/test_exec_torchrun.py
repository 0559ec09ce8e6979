"""Scripts under torchrun, here, through `warmrank exec`: cold, then warm on another cache directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, ended
from tests.support.launching import write_config

TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes={nnodes}", "--node-rank={node_rank}"),
    *("--master-addr={master_addr}", "--master-port={master_port}", "--nproc-per-node={nproc}"),
    str(ROOT / "tests" / "support" / "exec_model.py"),
)
pytestmark = pytest.mark.timeout(480)


def ranks_of(tmp_path: Path, command: tuple[str, ...], **changes: object) -> tuple[list[str], str]:
    """What each rank printed, and what warmrank said."""
    config = write_config(tmp_path, **changes)
    done = ended("-m", "warmrank", "exec", str(config), "--here", "--", *command)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines()), done.stderr


@pytest.mark.slow
def test_second_node_compiles_nothing_under_torchrun(tmp_path: Path) -> None:
    ranks, said = ranks_of(tmp_path, TORCHRUN)
    assert ranks == ["rank 0 compiled", "rank 1 compiled"]
    assert "published 2 ranks" in said
    second = {"cache_dir": str(tmp_path / "second"), "no_compile": True}
    ranks, said = ranks_of(tmp_path, TORCHRUN, **second)
    assert ranks == ["rank 0 loaded", "rank 1 loaded"]
    assert "2 partitions in the cache" in said
