"""Options of each process with the defaults of the settings, for tests and benchmarks that start one without the command line.

No metrics address, because several processes of the tests would use the same one, and no deletion of old rows, because the streams
of the tests are old.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamgauge.settings import process_options
from streamgauge.settings.model import Settings
from streamgauge.settings.process_options import options_of

if TYPE_CHECKING:
    from streamgauge.analytics.alerts.evaluator import AlertOptions
    from streamgauge.analytics.options import AnalyzeOptions
    from streamgauge.analytics.query.serve import ServeOptions
    from streamgauge.analytics.storage.location import StoreLocation
    from streamgauge.analytics.telemetry.telemetry import TelemetryOptions
    from streamgauge.dashboard.launch import DashboardOptions
    from streamgauge.ingest.ship import ShipOptions
    from streamgauge.ingest.tap.options import TapOptions


def tap_options(**given: Any) -> TapOptions:
    from streamgauge.ingest.tap.options import TapOptions

    return options_of(TapOptions, Settings(), **given)


def ship_options(**given: Any) -> ShipOptions:
    from streamgauge.ingest.ship import ShipOptions

    return options_of(ShipOptions, Settings(), **given)


def telemetry_options(**given: Any) -> TelemetryOptions:
    from streamgauge.analytics.telemetry.telemetry import TelemetryOptions

    return options_of(TelemetryOptions, Settings(), **{"metrics": None, **given})


def alert_options(**given: Any) -> AlertOptions:
    from streamgauge.analytics.alerts.evaluator import AlertOptions

    return options_of(AlertOptions, Settings(), "alert_", **given)


def analyze_options(**given: Any) -> AnalyzeOptions:
    made = process_options.analyze_options(Settings(metrics=""))
    return replace(made, **{"retain_events_s": None, "retain_streams_s": None, **given})


def serve_options(location: StoreLocation, data: Path, **given: Any) -> ServeOptions:
    from streamgauge.analytics.query.serve import ServeOptions

    return options_of(
        ServeOptions, Settings(), "sql_", location=location, data=data, **{"listen": "localhost:0", **given}
    )


def dashboard_options(**given: Any) -> DashboardOptions:
    return replace(process_options.dashboard_options(Settings(dashboard_listen="127.0.0.1:0")), **given)
