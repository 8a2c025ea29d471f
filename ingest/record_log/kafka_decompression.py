"""Limit the decompressed size of a Kafka batch. The client has no limit, and anyone who can reach the broker can write a
small batch that decompresses to gigabytes.

The client looks its codecs up by name in two modules. `limit_codecs` replaces them there. A batch over the limit raises
ValueError. The reader skips and reports it like a damaged batch. The client rejects Snappy and LZ4: they are not installed.
"""

from __future__ import annotations

import gzip
import io

import zstandard
from kafka.record import default_records, legacy_records

MAX_BATCH_BYTES = 64 * 2**20
"""Limit for a decompressed batch. `ship` sends 512 KiB, or one record as large as the broker accepts."""
MAX_WINDOW_BYTES = 8 * 2**20
"""Limit for zstd's window. Levels up to 19 stay below it."""


def limit_codecs() -> None:
    """Replace the client's codecs in this process."""
    for module in (default_records, legacy_records):
        module.gzip_decode = gunzip
    default_records.zstd_decode = unzstd


def gunzip(payload: bytes | memoryview) -> bytes:
    """Raises ValueError over the limit, and the errors of gzip for damaged data."""
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
        return _within(file.read(MAX_BATCH_BYTES + 1))


def unzstd(payload: bytes | memoryview) -> bytes:
    """Raises ValueError over the limit, zstandard.ZstdError for damaged data."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    with decompressor.stream_reader(io.BytesIO(payload), read_across_frames=True) as reader:
        return _within(reader.read(MAX_BATCH_BYTES + 1))


def _within(data: bytes) -> bytes:
    if len(data) > MAX_BATCH_BYTES:
        raise ValueError(f"a batch decompresses to more than {MAX_BATCH_BYTES // 2**20} MiB")
    return data
