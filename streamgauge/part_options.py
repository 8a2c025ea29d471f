"""Build the options of each part from the settings."""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

import click

from streamgauge.durations import parse_duration_s

if TYPE_CHECKING:
    from pydantic import SecretStr

    from analytics.main import AnalyzeOptions
    from analytics.query.serve import ServeOptions
    from dashboard.launch import DashboardOptions
    from ingest.ship import ShipOptions
    from ingest.tap.options import TapOptions
    from streamgauge.settings import Settings

log = logging.getLogger("streamgauge")


def tap_options(settings: Settings) -> TapOptions:
    from ingest.tap.header_rewrite import Forwarding
    from ingest.tap.options import TapOptions

    _warn_if_exposed("the tap's admin port", settings.admin)
    return TapOptions(
        upstreams=settings.upstream,
        default_upstream=settings.default_upstream,
        data=settings.data,
        listen=settings.listen,
        admin=settings.admin,
        allowed_hosts=settings.allowed_host,
        tap_name=settings.tap_name,
        workers=settings.workers,
        client_key=settings.client_key.get_secret_value().encode() if settings.client_key else None,
        record_log_max_bytes=settings.record_log_max_bytes,
        record_log_max_age_s=parse_duration_s(settings.record_log_max_age),
        queue_bytes=settings.tap_queue,
        connect_timeout_s=settings.connect_timeout,
        headers_timeout_s=settings.headers_timeout,
        idle_timeout_s=settings.idle_timeout,
        idle_output_timeout_s=settings.idle_output_timeout,
        max_request_bytes=settings.max_request_bytes,
        drain_timeout_s=settings.drain_timeout,
        forwarding=Forwarding(
            x_forwarded=not settings.no_x_forwarded,
            forwarded=settings.forwarded,
            via=settings.via,
            preserve_host=settings.preserve_host,
        ),
        upstream_ca=settings.upstream_ca,
        upstream_cert=settings.upstream_cert,
        upstream_key=settings.upstream_key,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
    )


def ship_options(settings: Settings) -> ShipOptions:
    """Raises click.UsageError without Kafka brokers."""
    from analytics.decoding.content_coding import BodyDecoder
    from ingest.redaction.record_redactor import Redactor
    from ingest.ship import ShipOptions

    if settings.kafka is None:
        raise click.UsageError(
            "no Kafka broker. Pass --kafka HOST:PORT.", click.get_current_context(silent=True)
        )
    return ShipOptions(
        data=settings.data,
        brokers=settings.kafka,
        redactor=Redactor(BodyDecoder, capture=settings.captured_routes),
        topic=settings.kafka_topic,
        kafka_options=settings.kafka_options,
    )


def analyze_options(settings: Settings) -> AnalyzeOptions:
    from analytics.main import AnalyzeOptions
    from analytics.telemetry.telemetry import TelemetryOptions
    from streamgauge import __version__

    if settings.metrics:
        _warn_if_exposed("analytics' metrics port", settings.metrics)
    if settings.otlp_listen:
        _warn_if_exposed("the OTLP receiver", settings.otlp_listen)
    return AnalyzeOptions(
        data=settings.data,
        kafka=settings.kafka,
        kafka_topic=settings.kafka_topic,
        kafka_options=settings.kafka_options,
        store=settings.store,
        lake_path=settings.lake_path,
        retain_events_s=parse_duration_s(settings.retain_events),
        retain_streams_s=parse_duration_s(settings.retain_streams),
        retain_rollups_s=parse_duration_s(settings.retain_rollups),
        capture=settings.captured_routes,
        tap_gone_after_s=parse_duration_s(settings.tap_gone_after),
        stall_floor_s=settings.stall_floor,
        stall_factor=settings.stall_factor,
        otlp_listen=settings.otlp_listen or None,
        otlp_token=_secret(settings.otlp_token),
        allowed_hosts=settings.allowed_host,
        version=__version__,
        telemetry=TelemetryOptions(
            semconv=settings.semconv,
            spans=not settings.no_spans,
            export=not settings.no_otlp,
            respect_sampling=not settings.export_unsampled,
            metrics=settings.metrics or None,
            allowed_hosts=settings.allowed_host,
        ),
    )


def serve_options(settings: Settings) -> ServeOptions:
    from analytics.query.serve import ServeOptions
    from analytics.storage.location import locate

    _warn_if_exposed("the SQL port, which is not encrypted,", f"{settings.sql_host}:{settings.sql_port}")
    return ServeOptions(
        location=locate(settings.store, settings.data),
        data=settings.data,
        host=settings.sql_host,
        port=settings.sql_port,
        token=_secret(settings.sql_token),
    )


def dashboard_options(settings: Settings) -> DashboardOptions:
    from dashboard.launch import DashboardOptions

    return DashboardOptions(
        data=settings.data,
        store=settings.store,
        host=settings.dashboard_host,
        port=settings.dashboard_port,
        slo_ttft_s=settings.slo_ttft,
        slo_itl_s=settings.slo_itl,
        slo_error_rate=settings.slo_error_rate,
        token=_secret(settings.dashboard_token),
        oidc=settings.dashboard_oidc,
        allowed_hosts=settings.dashboard_allowed_host,
    )


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value else None


def _warn_if_exposed(port: str, address: str) -> None:
    """Log a warning if other machines can connect, because this may be unintended."""
    host = address.rpartition(":")[0]
    try:
        private = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        private = host == "localhost"
    if not private:
        log.warning("%s is reachable from other machines, at %s", port, address)
