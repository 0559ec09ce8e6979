"""The lines that conditions on symbolic sizes come from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.support.tracing import traced


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 5:
            return x * 2
        return x * 3


def test_condition_has_its_line_and_its_size() -> None:
    found = traced(Halves().forward, torch.ones(6, 4)).shape_lines
    (line,) = [line for line in found if "x.shape[0] > 5" in line.frame[3]]
    file, number, function, _ = line.frame
    assert Path(__file__).name == Path(file).name
    assert "if x.shape[0] > 5:" in Path(__file__).read_text("utf-8").splitlines()[number - 1]
    assert function == "forward"
    assert line.sources == {"L['x'].size()[0]"}
