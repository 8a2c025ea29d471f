"""A model test of the embedded log: random appends, kills, restarts, reads and releases."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from tests.ingest.record_log.entries import abandon, payloads, read_all, segments_of, writer_of

READERS = ("one", "two")


class LogModel(RuleBasedStateMachine):
    """`written` has all appended entries. Each reader has read a prefix of them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.number = 0
        self.written: list[tuple[int, bytes]] = []
        self.writer: EmbeddedWriter = self.new_writer()
        self.readers = {name: EmbeddedReader(self.folder, name) for name in READERS}
        self.position = dict.fromkeys(READERS, 0)
        self.released = dict.fromkeys(READERS, 0)

    def new_writer(self) -> EmbeddedWriter:
        return writer_of(self.folder, segment_bytes=20_000)

    def teardown(self) -> None:
        self.writer.close()
        for reader in self.readers.values():
            reader.close()
        shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 8), size=st.sampled_from([0, 10, 3000, 30_000]))
    def append(self, count: int, size: int) -> None:
        sent = [b"%d:" % (self.number + at) + bytes(size) for at in range(count)]
        first = self.writer.next_offset
        self.writer.append(sent)
        # A roll skips no offsets while its writer runs.
        assert self.writer.next_offset == first + count
        self.written += [(first + at, payload) for at, payload in enumerate(sent)]
        self.number += count

    @rule(clean=st.booleans())
    def restart_writer(self, clean: bool) -> None:
        if clean:
            self.writer.close()
        else:
            abandon(self.writer)
        self.writer = self.new_writer()
        assert not self.written or self.writer.next_offset > self.written[-1][0]

    @rule(name=st.sampled_from(READERS), max_bytes=st.sampled_from([1, 5000, 10**6]))
    def poll(self, name: str, max_bytes: int) -> None:
        expected = [one for one in self.written if one[0] >= self.position[name]]
        got = [(entry.offset, entry.payload) for entry in self.readers[name].poll(0, max_bytes)]
        assert got == expected[: len(got)]
        assert bool(got) == bool(expected)
        if got:
            self.position[name] = got[-1][0] + 1

    @rule(name=st.sampled_from(READERS), back=st.integers(0, 10))
    def release(self, name: str, back: int) -> None:
        offset = max(self.released[name], self.position[name] - back)
        self.readers[name].release("w0", offset)
        self.released[name] = offset

    @rule(name=st.sampled_from(READERS))
    def restart_reader(self, name: str) -> None:
        self.readers[name].close()
        reader = self.readers[name] = EmbeddedReader(self.folder, name)
        assert reader.released("w0") == self.released[name]
        reader.seek("w0", reader.released("w0"))
        self.position[name] = self.released[name]

    @rule(name=st.sampled_from(READERS), start=st.integers(0, 20), length=st.integers(0, 20))
    def read_range(self, name: str, start: int, length: int) -> None:
        start += self.released[name]
        expected = [payload for offset, payload in self.written if start <= offset < start + length]
        assert payloads(self.readers[name].range("w0", start, start + length)) == expected

    @precondition(lambda self: self.written)
    @invariant()
    def the_end_is_the_next_offset(self) -> None:
        assert self.readers["one"].end("w0") == self.written[-1][0] + 1

    @invariant()
    def released_segments_are_deleted(self) -> None:
        firsts = [int(name[:20]) for name in segments_of(self.folder)]
        lowest = min(self.released.values())
        assert all(newer > lowest for newer in firsts[1:])


LogModel.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestLog = LogModel.TestCase


def test_an_appended_entry_is_read(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer, EmbeddedReader(tmp_path, "one") as reader:
        writer.append([b"a"])
        assert payloads(read_all(reader)) == [b"a"]
