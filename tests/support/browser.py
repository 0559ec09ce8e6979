"""A browser without a window, and as much of PNG as it takes to see that a picture shows something."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Pixels of a PNG, in rows of bytes."""

    width: int
    height: int
    rows: tuple[bytes, ...]
    pixel_bytes: int

    def pixel(self, x: int, y: int) -> tuple[int, ...]:
        at = x * self.pixel_bytes
        return tuple(self.rows[y][at : at + 3])

    def num_colours(self) -> int:
        """Distinct colours of every fourth row."""
        size = self.pixel_bytes
        return len({row[at : at + 3] for row in self.rows[::4] for at in range(0, len(row), size)})

    def share_of(self, colour: tuple[int, ...]) -> float:
        """Share of the pixels of every fourth row that have this colour."""
        wanted, size = bytes(colour), self.pixel_bytes
        pixels = [row[at : at + 3] for row in self.rows[::4] for at in range(0, len(row), size)]
        return sum(pixel == wanted for pixel in pixels) / len(pixels)


def run_browser(browser: str, page: Path, profile: Path, *options: str) -> str:
    """Open a page in a profile of its own, and return what the browser printed."""
    command = [browser, *_FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def picture_of(browser: str, page: Path, out: Path, *, size: tuple[int, int], scale: float = 0.5) -> Picture:
    """A picture of the top of a page, by default a small one, which is read sooner."""
    run_browser(
        browser,
        page,
        page.with_suffix(".profile"),
        f"--window-size={size[0]},{size[1]}",
        f"--force-device-scale-factor={scale}",
        f"--screenshot={out}",
    )
    return read_png(out.read_bytes())


def read_png(data: bytes) -> Picture:
    """Decode a PNG of eight bits a channel, with or without alpha, as browsers write it."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, header, packed = 8, b"", b""
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        header, packed = (body if kind == b"IHDR" else header), packed + (body if kind == b"IDAT" else b"")
        at += 12 + length
    width, height, depth, kind_of_colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert (depth, interlaced) == (8, 0)
    size = {2: 3, 6: 4}[kind_of_colour]
    raw, stride, rows, before = zlib.decompress(packed), width * size, [], bytes(width * size)
    for index in range(height):
        start = index * (stride + 1)
        before = _unfiltered(raw[start], raw[start + 1 : start + 1 + stride], before, size)
        rows.append(before)
    return Picture(width=width, height=height, rows=tuple(rows), pixel_bytes=size)


def _unfiltered(kind: int, line: bytes, above: bytes, size: int) -> bytes:
    """Undo one row's filter; https://www.w3.org/TR/png-3/#9Filters."""
    if kind == 0:
        return line
    if kind == 2:
        return bytes((value + up) & 255 for value, up in zip(line, above, strict=True))
    row = bytearray(line)
    for at, value in enumerate(line):
        left = row[at - size] if at >= size else 0
        corner = above[at - size] if at >= size else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + above[at]) // 2
        else:
            guess = _paeth(left, above[at], corner)
        row[at] = (value + guess) & 255
    return bytes(row)


def _paeth(left: int, up: int, corner: int) -> int:
    near = left + up - corner
    distances = ((abs(near - left), left), (abs(near - up), up), (abs(near - corner), corner))
    return min(distances, key=lambda pair: pair[0])[1]
