"""The types of the extension module `native_relay.pyx`."""

from typing import Any

CHUNKED: int
LENGTH: int
UNTIL_CLOSE: int
RECORD: int
LOST: int
CLIENT_WAIT: int
TAP_WAIT: int
END: int
COMPLETE: int
UPSTREAM_LOST: int
CLIENT_LOST: int
MALFORMED: int
TAKEN_BACK: int

class ChunkedBody:
    def __init__(self, of_request: bool = False) -> None: ...
    complete: bool
    excess: int
    def feed(self, data: bytes) -> bytes: ...

class NativeRelay:
    dropped_waits: int
    pending_bytes: int
    def start(self) -> None: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def set_room(self, size_bytes: int, epoch: int) -> None: ...
    def add(
        self,
        upstream: int,
        client: int,
        framing: int,
        reader: ChunkedBody | None,
        length: int,
        now_ns: int,
        output_ns: int,
        events: bool,
        prefix: bytes,
        seq: int,
        t0_ns: int,
        capture_bytes: int,
    ) -> int: ...
    def take_back(self, number: int, now_ns: int) -> None: ...
    def progress(self, number: int) -> tuple[int, int, int, bool]: ...
    def take(self, before_ns: int) -> tuple[list[bytes], int, int, list[tuple[int, int, int, Any, Any]]]: ...
