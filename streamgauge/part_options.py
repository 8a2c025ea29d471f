"""Build the options of each part from the settings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from streamgauge.analytics.extras import require
from streamgauge.durations import parse_duration_s
from streamgauge.ingest.addresses import is_loopback, split_address

if TYPE_CHECKING:
    from pydantic import SecretStr

    from streamgauge.analytics.main import AnalyzeOptions
    from streamgauge.analytics.query.serve import ServeOptions
    from streamgauge.analytics.schema.prices import Price
    from streamgauge.dashboard.launch import DashboardOptions
    from streamgauge.ingest.ship import ShipOptions
    from streamgauge.ingest.tap.options import TapOptions
    from streamgauge.settings import Settings

log = logging.getLogger("streamgauge")


def tap_options(settings: Settings) -> TapOptions:
    from streamgauge.ingest.tap.header_rewrite import Forwarding
    from streamgauge.ingest.tap.options import TapOptions

    warn_if_exposed("the tap's admin port", settings.admin)
    return TapOptions(
        upstreams=settings.upstream,
        default_upstream=settings.default_upstream,
        data=settings.data,
        listen=settings.listen,
        admin=settings.admin,
        allowed_hosts=settings.allowed_host,
        tap_name=settings.tap_name,
        workers=settings.workers,
        client_key=_client_key(settings),
        session_headers=_session_headers(settings),
        record_log_max_bytes=settings.record_log_max_bytes,
        record_log_max_age_s=parse_duration_s(settings.record_log_max_age),
        queue_bytes=settings.tap_queue,
        connect_timeout_s=settings.connect_timeout,
        headers_timeout_s=settings.headers_timeout,
        idle_timeout_s=settings.idle_timeout,
        idle_output_timeout_s=settings.idle_output_timeout,
        max_request_bytes=settings.max_request_bytes,
        relay=settings.relay,
        drain_timeout_s=settings.drain_timeout,
        forwarding=Forwarding(
            x_forwarded=settings.x_forwarded,
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
    from streamgauge.analytics.decoding.content_coding import BodyDecoder
    from streamgauge.analytics.decoding.conversation import ConversationReader
    from streamgauge.ingest.client_key import FILE, load_client_key
    from streamgauge.ingest.private_files import prepare_data_folder
    from streamgauge.ingest.redaction.record_redactor import Redactor
    from streamgauge.ingest.ship import ShipOptions

    if settings.kafka is None:
        raise click.UsageError(
            "no Kafka broker. Pass --kafka HOST:PORT.", click.get_current_context(silent=True)
        )
    prepare_data_folder(settings.data)
    key = _client_key(settings) or load_client_key(settings.data / FILE)
    return ShipOptions(
        data=settings.data,
        brokers=settings.kafka,
        redactor=Redactor(
            BodyDecoder, capture=settings.captured_routes, conversation=ConversationReader(key)
        ),
        topic=settings.kafka_topic,
        kafka_options=settings.kafka_options,
    )


def prices(settings: Settings) -> tuple[Price, ...]:
    """The prices in the price file. Raises click.UsageError."""
    from streamgauge.price_file import read_prices

    try:
        return read_prices(settings.price_file) if settings.price_file is not None else ()
    except ValueError as e:
        raise click.UsageError(str(e), click.get_current_context(silent=True)) from None


def analyze_options(settings: Settings) -> AnalyzeOptions:
    from streamgauge import __version__
    from streamgauge.analytics.alerts.evaluator import AlertOptions
    from streamgauge.analytics.main import AnalyzeOptions
    from streamgauge.analytics.telemetry.telemetry import TelemetryOptions

    if settings.metrics:
        warn_if_exposed("analytics' metrics port", settings.metrics)
    if settings.otlp_listen:
        require("uvicorn")
        warn_if_exposed("the OTLP receiver", settings.otlp_listen)
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
        client_key=_client_key(settings),
        objectives=settings.all_objectives,
        prices=prices(settings),
        clients=settings.clients,
        otlp_listen=settings.otlp_listen or None,
        otlp_token=_secret(settings.otlp_token),
        allowed_hosts=settings.allowed_host,
        version=__version__,
        alerts=AlertOptions(
            silence_s=settings.alert_silence,
            first_output_s=settings.alert_first_output,
            webhook=_secret(settings.alert_webhook),
        ),
        telemetry=TelemetryOptions(
            semconv=settings.semconv,
            server_metrics=settings.server_metrics,
            spans=not settings.no_spans,
            export=not settings.no_otlp,
            respect_sampling=not settings.export_unsampled,
            metrics=settings.metrics or None,
            allowed_hosts=settings.allowed_host,
        ),
    )


def serve_options(settings: Settings) -> ServeOptions:
    from streamgauge.analytics.query.serve import ServeOptions
    from streamgauge.analytics.storage.location import locate

    warn_if_exposed("the SQL port, which is not encrypted,", f"{settings.sql_host}:{settings.sql_port}")
    return ServeOptions(
        location=locate(settings.store, settings.data),
        data=settings.data,
        host=settings.sql_host,
        port=settings.sql_port,
        token=_secret(settings.sql_token),
    )


def dashboard_options(settings: Settings) -> DashboardOptions:
    from streamgauge.dashboard.launch import DashboardOptions

    return DashboardOptions(
        data=settings.data,
        store=settings.store,
        host=settings.dashboard_host,
        port=settings.dashboard_port,
        slo_ttft_s=settings.slo_ttft,
        slo_itl_s=settings.slo_itl,
        slo_error_rate=settings.slo_error_rate,
        stall_floor_s=settings.stall_floor,
        stall_factor=settings.stall_factor,
        saved_views=settings.saved_views,
        token=_secret(settings.dashboard_token),
        oidc=settings.dashboard_oidc,
        allowed_hosts=settings.dashboard_allowed_host,
    )


def _session_headers(settings: Settings) -> tuple[str, ...]:
    """Those of the settings first, then those of plugins as far as the limit allows."""
    from streamgauge.ingest.plugins import SESSION_HEADERS, load_plugins
    from streamgauge.ingest.session_ids import MAX_HEADERS, parse_session_headers

    found = load_plugins(SESSION_HEADERS, parse_session_headers)
    return tuple(
        dict.fromkeys((*settings.session_header, *(name for names in found.values() for name in names)))
    )[:MAX_HEADERS]


def _client_key(settings: Settings) -> bytes | None:
    return settings.client_key.get_secret_value().encode() if settings.client_key else None


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value else None


def warn_if_exposed(port: str, address: str) -> None:
    """Log a warning if other machines can connect, because this may be unintended."""
    if not is_loopback(split_address(address)[0]):
        log.warning("%s is reachable from other machines, at %s", port, address)
