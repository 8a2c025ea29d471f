"""A bound on what a batch of Kafka may unpack to: the client has none, and whoever reaches the broker can write a small batch
that becomes gigabytes.

The client takes its codecs from two modules by name, and there the bounded ones are put. A batch over the bound is a
`ValueError`, as one that is damaged: the reader leaves it out and tells it. Snappy and LZ4 are not installed; the client
refuses them.
"""

from __future__ import annotations

import gzip
import io

import zstandard
from kafka.record import default_records, legacy_records

MAX_BATCH_BYTES = 64 * 2**20
"""Unpacked. Ship's batches are of 512 KiB, or of one record as large as the broker takes."""
MAX_WINDOW_BYTES = 8 * 2**20
"""What zstd may ask for to look back; its levels up to 19 stay below."""


def bound_codecs() -> None:
    """From now on no batch unpacks to more than `MAX_BATCH_BYTES` in this process."""
    for module in (default_records, legacy_records):
        module.gzip_decode = gunzip
    default_records.zstd_decode = unzstd


def gunzip(payload: bytes | memoryview) -> bytes:
    """Raises ValueError over the bound, and what gzip raises of damage."""
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
        return _within(file.read(MAX_BATCH_BYTES + 1))


def unzstd(payload: bytes | memoryview) -> bytes:
    """Raises ValueError over the bound, zstandard.ZstdError of damage."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    with decompressor.stream_reader(io.BytesIO(payload), read_across_frames=True) as reader:
        return _within(reader.read(MAX_BATCH_BYTES + 1))


def _within(data: bytes) -> bytes:
    if len(data) > MAX_BATCH_BYTES:
        raise ValueError(f"a batch that unpacks to more than {MAX_BATCH_BYTES // 2**20} MiB")
    return data
