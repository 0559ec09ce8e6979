from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from warmrank.cache_store.connect import TierSpec, open_store
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.signing.trust import Trust
from warmrank.orchestrator.cli.main import app


def init(tmp_path: Path, mode: str) -> tuple[int, str]:
    config = tmp_path / "launch.yaml"
    config.write_text(
        "workload: {entrypoint: 'warmrank.examples.llama:workload'}\nranks: 1\n"
        f"store: {{path: {tmp_path / 'store'}, mode: {mode}}}\n"
    )
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["store", "init", str(config)])
    return result.exit_code, result.output


def test_init_makes_a_required_store_once(tmp_path):
    assert init(tmp_path, "required") == (0, f"made: {tmp_path / 'store'}\n")
    assert init(tmp_path, "required") == (0, f"there already: {tmp_path / 'store'}\n")


def test_required_store_is_not_made_where_its_disk_may_not_be_mounted(tmp_path):
    spec = TierSpec(location=str(tmp_path / "mnt" / "store"), mode="required")
    with pytest.raises(StoreUnavailable, match="warmrank store init") as caught:
        open_store([spec], trust=Trust(policy="off"))
    assert caught.value.required
    assert not (tmp_path / "mnt").exists()
