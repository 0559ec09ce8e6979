"""Empty directories for many trials one after another, which together would fill a memory disk."""

from __future__ import annotations

import shutil
from pathlib import Path


class Rooms:
    """Empty directories for one trial after another; each goes when the next one comes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fresh(self) -> Path:
        """An empty directory; the one before is gone."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        return self._root
