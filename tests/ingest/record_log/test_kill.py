"""After kill -9 of the writing process every acknowledged entry can be read."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from tests.ingest.record_log.entries import read_all

WRITE_FOREVER = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
    writer = EmbeddedWriter(Path(sys.argv[1]), "w0", cap_bytes=2**28, segment_bytes=200_000)
    number = 0
    while True:
        payloads = [b"%s.%d.%d" % (sys.argv[2].encode(), number, at) for at in range(5)]
        writer.append([payload * 20 for payload in payloads])
        os.write(1, b"%d %d\\n" % (writer.next_offset, number))
        number += 1
    """
)


@pytest.mark.parametrize("release", [False, True], ids=["kept", "trimmed-meanwhile"])
def test_every_acknowledged_entry_survives_kill_9(tmp_path: Path, release: bool) -> None:
    chance = random.Random(7)
    got: dict[int, bytes] = {}
    acknowledged: dict[int, bytes] = {}
    with EmbeddedReader(tmp_path, "one") as reader:
        for run in range(8):
            process = subprocess.Popen(
                [sys.executable, "-c", WRITE_FOREVER, tmp_path, str(run)], stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(chance.randrange(5, 400))]
            process.kill()
            lines += process.stdout.read().splitlines()
            process.wait()
            process.stdout.close()
            for line in lines:
                fields = line.split()
                if len(fields) != 2:
                    continue  # truncated by the kill
                end, number = int(fields[0]), int(fields[1])
                for at in range(5):
                    acknowledged[end - 5 + at] = b"%d.%d.%d" % (run, number, at) * 20
            for entry in read_all(reader):
                assert entry.offset not in got, "an offset was reused"
                got[entry.offset] = entry.payload
                if release:
                    reader.release("w0", entry.offset + 1)
        assert reader.take_unreadable() == []
    assert len(acknowledged) > 1000
    assert {offset: got.get(offset) for offset in acknowledged} == acknowledged
    # The log may have unacknowledged appends, but only complete ones.
    assert len(got) % 5 == 0
