"""Streams and the pipeline told to others: OpenTelemetry spans, metrics, events; Prometheus."""
