"""Private files with the state of open WebSockets: the rest of a message and 32 KiB of text in each direction.

They stay beside the embedded log and not in the store, which has no text. Each file (0600) belongs to one checkpoint of its
WebSocket. It is written before the commit of that checkpoint, and the file before it is deleted after the commit. So a process
that is killed at any time continues from the file of the last committed checkpoint. The files need not survive a power cut, which
ends all open WebSockets too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

from streamgauge.ingest.private_files import make_private_folder, write_private

MAX_STATE_BYTES = 256 * 2**20
"""All files. A further state is not stored: a restart loses the open answers of its WebSocket."""

log = logging.getLogger(__name__)


class WebSocketStates:
    """The files of one process. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self._folder = folder
        self._sizes = {path: path.stat().st_size for path in folder.iterdir()}
        self._newest: dict[str, Path] = {}
        """By stream."""

    def save(self, stream: str, checkpoint: bytes, state: bytes) -> bool:
        """Store the state after a checkpoint. False: there is no room."""
        path = self._newest[stream] = self._path(stream, checkpoint)
        if sum(self._sizes.values()) + len(state) > MAX_STATE_BYTES:
            return False
        try:
            write_private(path, _digest(state) + state)
        except OSError as error:
            log.warning("cannot store the state of a WebSocket: %s", error)
            return False
        self._sizes[path] = len(state)
        return True

    def load(self, stream: str, checkpoint: bytes) -> bytes | None:
        """The state after the last checkpoint of an open stream. None: it has none, or a damaged one."""
        path = self._newest[stream] = self._path(stream, checkpoint)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        state = content[_DIGEST_BYTES:]
        return state if content == _digest(state) + state else None

    def committed(self, finished: Iterable[str]) -> None:
        """The checkpoints are committed, and these streams have ended. Deletes the files that no stream needs."""
        for stream in finished:
            self._newest.pop(stream, None)
        for path in self._sizes.keys() - self._newest.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                del self._sizes[path]

    def _path(self, stream: str, checkpoint: bytes) -> Path:
        return self._folder / f"{stream}-{_digest(checkpoint).hex()}"


_DIGEST_BYTES = 16


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
