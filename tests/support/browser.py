"""A browser without a window: prints a page as it stands after its script, or draws it."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def find_browser() -> str | None:
    """Path of a browser that can run without a window; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def run_browser(browser: str, page: Path, *options: str) -> str:
    """Open a page in a profile of its own, and return what the browser printed."""
    profile = page.with_suffix(".profile")
    command = [browser, *_FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def picture_of(browser: str, page: Path, out: Path, *, size: tuple[int, int], scale: float) -> bytes:
    """A picture of the top of a page, as PNG; checks that it has the size that it should."""
    run_browser(
        browser,
        page,
        f"--window-size={size[0]},{size[1]}",
        f"--force-device-scale-factor={scale}",
        f"--screenshot={out}",
    )
    data = out.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == tuple(int(side * scale) for side in size)
    return data
