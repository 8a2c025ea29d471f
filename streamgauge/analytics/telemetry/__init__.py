"""OpenTelemetry spans, metrics and events of streams, and the Prometheus endpoint."""
