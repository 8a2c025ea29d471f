"""What each part is told, from the settings: the one place where the two meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analytics.consume import AnalyzeOptions
    from dashboard.launch import DashboardOptions
    from ingest.ship import ShipOptions
    from ingest.tap import TapOptions
    from streamgauge.settings import Settings


def analyze_options(settings: Settings) -> AnalyzeOptions:
    """For `analyze`."""
    from analytics.consume import AnalyzeOptions
    from analytics.retention import parse_age

    return AnalyzeOptions(
        data=settings.data,
        kafka=settings.kafka,
        kafka_topic=settings.kafka_topic,
        kafka_options=settings.kafka_options,
        quack_host=settings.quack_host,
        quack_port=settings.quack_port,
        quack_token=settings.quack_token.get_secret_value() if settings.quack_token else None,
        store=settings.store,
        retain_events_s=parse_age(settings.retain_events),
        retain_streams_s=parse_age(settings.retain_streams),
        capture_content=settings.capture_content,
        stall_floor_s=settings.stall_floor,
        stall_factor=settings.stall_factor,
    )


def dashboard_options(settings: Settings) -> DashboardOptions:
    """For `dashboard`."""
    from dashboard.launch import DashboardOptions

    return DashboardOptions(
        data=settings.data,
        host=settings.dashboard_host,
        port=settings.dashboard_port,
        slo_ttft_s=settings.slo_ttft,
        slo_itl_s=settings.slo_itl,
    )
