"""Histogram bucket values, computed as the SQL views do."""

from __future__ import annotations

from streamgauge.analytics.schema.histogram_buckets import BUCKETS_PER_DECADE, ZERO_BUCKET

RELATIVE_ERROR = 10 ** (0.5 / BUCKETS_PER_DECADE) - 1
"""Relative distance from a bucket's value (geometric middle) to its bounds."""


def bucket_value(bucket: int) -> float:
    return 0.0 if bucket == ZERO_BUCKET else 10 ** ((bucket + 0.5) / BUCKETS_PER_DECADE)
