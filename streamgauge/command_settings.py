"""The settings that each command accepts. `--help` lists up to ten settings in this order."""

from __future__ import annotations

TAP = (
    "upstream", "default_upstream", "listen", "admin", "allowed_host", "data", "workers", "tap_name", "record_log_max_bytes",
    "record_log_max_age", "tap_queue", "connect_timeout", "headers_timeout", "idle_timeout", "idle_output_timeout",
    "max_request_bytes", "relay", "drain_timeout", "upstream_ca", "upstream_cert", "upstream_key", "tls_cert", "tls_key", "x_forwarded",
    "forwarded", "via", "preserve_host", "client_key", "session_header", "log_format",
)  # fmt: skip
SHIP = (
    "data", "kafka", "kafka_topic", "kafka_options", "client_key", "capture_content", "capture_routes", "log_format",
)  # fmt: skip
ANALYZE = (
    "data", "kafka", "kafka_topic", "kafka_options", "store", "lake_path",
    "client_key", "retain_events", "retain_streams", "retain_rollups", "tap_gone_after", "capture_content", "capture_routes",
    "stall_floor", "stall_factor", "objectives", "clients", "price_file", "slo_ttft", "slo_itl", "slo_error_rate",
    "metrics", "semconv", "server_metrics", "no_spans", "no_otlp", "export_unsampled", "otlp_listen", "otlp_token",
    "allowed_host", "alert_silence", "alert_first_output", "alert_webhook", "log_format",
)  # fmt: skip
SERVE = ("data", "sql_port", "sql_host", "sql_token", "store", "log_format")
DASHBOARD = (
    "data", "dashboard_port", "dashboard_host", "dashboard_token", "dashboard_oidc", "dashboard_allowed_host",
    "slo_ttft", "slo_itl", "slo_error_rate", "stall_floor", "stall_factor", "saved_views", "store", "log_format",
)  # fmt: skip
UP = tuple(dict.fromkeys((*TAP, *SHIP, *ANALYZE, *DASHBOARD, "no_dashboard", "serve", "hung_after", *SERVE)))
SETTINGS_OF_PARTS = {
    "tap": TAP, "ship": SHIP, "analyze": ANALYZE, "serve": SERVE, "dashboard": DASHBOARD,
    "mcp": ("mcp_host", "mcp_port", "mcp_token"),
}  # fmt: skip
"""By the name of the command."""
