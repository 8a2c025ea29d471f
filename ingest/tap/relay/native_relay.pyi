"""The types of the extension module `native_relay.pyx`."""

from typing import Any

from streamgauge.ingest.tap.http.bodies import BodyReader

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

class NativeRelay:
    def start(self) -> None: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def counts(self) -> tuple[int, int, int]: ...
    def set_room(self, size_bytes: int, epoch: int) -> None: ...
    def add(
        self,
        upstream: int,
        client: int,
        reader: BodyReader,
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
    def take(self, before_ns: int) -> list[tuple[int, int, Any, Any]]: ...

class EncodedRecords:
    count: int
    frames: int
    captured_bytes: int
    size_bytes: int
    def take(self) -> list[bytes]: ...
