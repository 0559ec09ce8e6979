"""The least of an S3 server, in memory, so that a benchmark measures clients: moto serves 300 requests/s.

It speaks PUT (also create-only and in parts), GET, HEAD, POST for uploads in parts, and nothing else: every
listing is empty, and no signature is checked. Serves on the port that it is given until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import cast
from urllib.parse import parse_qs, urlsplit

_DATE = b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
_HEAD_END = b"\r\n\r\n"


class Objects:
    """What is stored."""

    def __init__(self) -> None:
        self.whole: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self._ids = itertools.count()

    def answer(self, method: str, target: str, headers: dict[bytes, bytes], body: bytes) -> bytes:
        """The answer to one request, as it goes over the line."""
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if method == "PUT":
            return self._put(url.path, query, headers, body)
        if method == "POST":
            return self._post(url.path, query)
        if "list-type" in query:
            return _response(b"200 OK", b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")
        if url.path not in self.whole:
            return _response(b"404 Not Found")
        data = self.whole[url.path]
        if b"range" in headers:
            return _rest(data, headers[b"range"])
        return _response(b"200 OK", data, is_head=method == "HEAD")

    def _put(self, path: str, query: dict[str, str], headers: dict[bytes, bytes], body: bytes) -> bytes:
        if "uploadId" in query:
            self.parts[query["uploadId"]][int(query["partNumber"])] = body
        elif headers.get(b"if-none-match") == b"*" and path in self.whole:
            return _response(b"412 Precondition Failed")
        else:
            self.whole[path] = body
        return _response(b"200 OK")

    def _post(self, path: str, query: dict[str, str]) -> bytes:
        if "uploads" in query:
            upload = str(next(self._ids))
            self.parts[upload] = {}
            fields = f"<UploadId>{upload}</UploadId>"
            return _response(
                b"200 OK", f"<InitiateMultipartUploadResult>{fields}</InitiateMultipartUploadResult>".encode()
            )
        parts = self.parts.pop(query["uploadId"])
        self.whole[path] = b"".join(parts[number] for number in sorted(parts))
        fields = '<ETag>"x"</ETag>'
        return _response(
            b"200 OK", f"<CompleteMultipartUploadResult>{fields}</CompleteMultipartUploadResult>".encode()
        )


class Connection(asyncio.Protocol):
    """One client's connection, which is kept alive."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._data = bytearray()
        self._head: tuple[str, str, dict[bytes, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that is there in full."""
        self._data += data
        while True:
            if self._head is None:
                end = self._data.find(_HEAD_END)
                if end < 0:
                    return
                self._head = _parsed(bytes(self._data[:end]))
                del self._data[: end + len(_HEAD_END)]
                if b"expect" in self._head[2]:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            size = int(self._head[2].get(b"content-length", 0))
            if len(self._data) < size:
                return
            body = bytes(memoryview(self._data)[:size])
            del self._data[:size]
            method, target, headers = self._head
            self._head = None
            self._transport.write(self._objects.answer(method, target, headers, body))


def _parsed(head: bytes) -> tuple[str, str, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    method, target, _ = first.decode().split(" ")
    pairs = (line.partition(b":") for line in lines)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _rest(data: bytes, wanted: bytes) -> bytes:
    """The answer to a download that goes on: ``bytes=<start>-``."""
    start = int(wanted.removeprefix(b"bytes=").partition(b"-")[0])
    place = b"Content-Range: bytes %d-%d/%d\r\n" % (start, len(data) - 1, len(data))
    return _response(b"206 Partial Content", data[start:], headers=_DATE + place)


def _response(status: bytes, body: bytes = b"", *, headers: bytes = _DATE, is_head: bool = False) -> bytes:
    head = b'HTTP/1.1 %b\r\nETag: "x"\r\n%bContent-Length: %d\r\n\r\n' % (status, headers, len(body))
    return head if is_head else head + body


async def _serve() -> None:
    objects = Objects()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(objects), "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
