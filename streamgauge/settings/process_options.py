"""The options of each process from the settings, and the checks that `up` and `config check` do before a start.

An option takes the setting that `settings.option_name` maps to its name. Options without a setting are constants of the process:
their dataclass has the only default.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from streamgauge.analytics.extras import require
from streamgauge.ingest.listening import check_listener, check_token, is_loopback, same_address, split_address
from streamgauge.settings.flags import flag
from streamgauge.settings.model import Settings, option_name, option_value

if TYPE_CHECKING:
    from streamgauge.analytics.options import AnalyzeOptions
    from streamgauge.analytics.query.serve import ServeOptions
    from streamgauge.analytics.schema.prices import Price
    from streamgauge.dashboard.launch import DashboardOptions
    from streamgauge.ingest.recording.options import RecordingOptions
    from streamgauge.ingest.redaction.record_redactor import Redactor
    from streamgauge.ingest.ship import ShipOptions
    from streamgauge.ingest.tap.options import TapOptions

Options = TypeVar("Options")
log = logging.getLogger("streamgauge")


def options_of(kind: type[Options], settings: Settings, prefix: str = "", **more: Any) -> Options:
    """An instance of an option dataclass. The option `token` takes the setting `dashboard_token` if the prefix is `dashboard_`.

    `more`: options that are no setting's value.
    """
    of_options = {option_name(name): name for name in Settings.model_fields}
    found: dict[str, Any] = {}
    for option in fields(kind):  # type: ignore[arg-type]
        # The prefixed name first: `listen` alone is the tap's address.
        name = of_options.get(prefix + option.name) or of_options.get(option.name)
        if name is not None and option.name not in more:
            found[option.name] = option_value(settings, name)
    return kind(**found, **more)


def tap_options(settings: Settings) -> TapOptions:
    from streamgauge.ingest.tap.options import TapOptions

    warn_if_exposed("the tap's admin port", settings.admin)
    return _recording_options(TapOptions, settings)


def recording_options(settings: Settings) -> RecordingOptions:
    """Those of a source that is no tap."""
    from streamgauge.ingest.recording.options import RecordingOptions

    return _recording_options(RecordingOptions, settings)


def _recording_options(kind: type[Options], settings: Settings) -> Options:
    return options_of(
        kind, settings, client_key=_client_key(settings), session_headers=_session_headers(settings)
    )


def ship_options(settings: Settings) -> ShipOptions:
    """Raises click.UsageError without Kafka brokers."""
    from streamgauge.ingest.private_files import prepare_data_folder
    from streamgauge.ingest.ship import ShipOptions

    if settings.kafka is None:
        # Not a required setting: `up` runs `ship` only with it, and the other parts do without.
        raise click.UsageError(
            "no Kafka broker. Pass --kafka HOST:PORT.", click.get_current_context(silent=True)
        )
    # Before the key: a new key file must be in a folder that only its owner reads.
    prepare_data_folder(settings.data)
    return options_of(ShipOptions, settings, redactor=redactor(settings))


def redactor(settings: Settings) -> Redactor:
    """Raises OSError and ValueError as `load_client_key`."""
    from streamgauge.analytics.decoding.conversation import ConversationReader
    from streamgauge.ingest.redaction.record_redactor import Redactor

    key = client_key(settings)
    conversation = ConversationReader(key, settings.labels)
    return Redactor(capture=settings.captured_routes, conversation=conversation, key=key)


def client_key(settings: Settings) -> bytes:
    """The one of the settings or of the data folder, where it is created if it is missing."""
    from streamgauge.ingest.keyed_ids import FILE, load_client_key

    return _client_key(settings) or load_client_key(settings.data / FILE)


def prices(settings: Settings) -> tuple[Price, ...]:
    """The prices in the price file, which is read at each start so that an edit needs no other step. Raises click.UsageError."""
    from streamgauge.settings.price_file import read_prices

    try:
        return read_prices(settings.price_file) if settings.price_file is not None else ()
    except ValueError as e:
        raise click.UsageError(str(e), click.get_current_context(silent=True)) from None


def _check_budgets(settings: Settings) -> None:
    """Raises click.UsageError for budgets that no request could count in."""
    context = click.get_current_context(silent=True)
    if settings.budgets and settings.price_file is None:
        raise click.UsageError("budgets need prices. Pass --price-file.", context)
    declared = {label.name for label in settings.labels}
    for budget in settings.budgets:
        name = (budget.label or "").partition("=")[0]
        if name and name not in declared:
            raise click.UsageError(
                f"budget {budget.name!r}: no label is called {name!r}. Pass --label.", context
            )


def _check_webhooks(settings: Settings) -> None:
    """Raises click.UsageError for receivers of alerts that would refuse every one."""
    from streamgauge.analytics.alerts.formats import format_of

    urls = settings.alert_webhook.get_secret_value().split() if settings.alert_webhook is not None else ()
    if settings.alert_routing_key is None and any(format_of(url) == "pagerduty" for url in urls):
        raise click.UsageError(
            "PagerDuty accepts no alert without an integration key. Set alert_routing_key.",
            click.get_current_context(silent=True),
        )


def analyze_options(settings: Settings) -> AnalyzeOptions:
    from streamgauge import __version__
    from streamgauge.analytics.alerts.evaluator import AlertOptions
    from streamgauge.analytics.options import AnalyzeOptions
    from streamgauge.analytics.telemetry.telemetry import TelemetryOptions

    _check_budgets(settings)
    _check_webhooks(settings)
    if settings.metrics:
        warn_if_exposed("analytics' metrics port", settings.metrics)
    if settings.otlp_listen:
        require("uvicorn")  # here, because its import comes late, when the store is open
        warn_if_exposed("the OTLP receiver", settings.otlp_listen)
    return options_of(
        AnalyzeOptions,
        settings,
        capture=settings.captured_routes,
        client_key=_client_key(settings),
        objectives=settings.all_objectives,
        prices=prices(settings),
        version=__version__,
        alerts=options_of(AlertOptions, settings, "alert_"),
        telemetry=options_of(TelemetryOptions, settings),
    )


def serve_options(settings: Settings) -> ServeOptions:
    from streamgauge.analytics.query.serve import ServeOptions
    from streamgauge.analytics.storage.location import locate

    warn_if_exposed("the SQL port, which is not encrypted,", settings.sql_listen)
    return options_of(ServeOptions, settings, "sql_", location=locate(settings.store, settings.data))


def dashboard_options(settings: Settings) -> DashboardOptions:
    require("streamlit")  # before the imports: the first missing one would be of the extra `analytics`
    from streamgauge.dashboard.launch import DashboardOptions

    return options_of(DashboardOptions, settings, "dashboard_")


def _session_headers(settings: Settings) -> tuple[str, ...]:
    """Those of the settings first, then those of plugins as far as the limit allows."""
    from streamgauge.ingest.keyed_ids import MAX_HEADERS, parse_session_headers
    from streamgauge.ingest.plugins import SESSION_HEADERS, load_plugins

    found = load_plugins(SESSION_HEADERS, parse_session_headers)
    return tuple(
        dict.fromkeys((*settings.session_header, *(name for names in found.values() for name in names)))
    )[:MAX_HEADERS]


def _client_key(settings: Settings) -> bytes | None:
    return settings.client_key.get_secret_value().encode() if settings.client_key else None


def warn_if_exposed(port: str, address: str) -> None:
    """Log a warning if other machines can connect, because this may be unintended."""
    if not is_loopback(split_address(address)[0]):
        log.warning("%s is reachable from other machines, at %s", port, address)


class Fault(NamedTuple):
    """A part would not start."""

    part: str
    message: str


def start_faults(settings: Settings, only: str | None = None) -> list[Fault]:
    """The faults of one part or of all, in one line each. Parts whose extra is not installed here are not checked.

    Each part does the same checks when it starts. `up` refuses to start only for faults of the tap; other parts report their own.
    No check opens a port of a setting, because the parts may be running.
    """
    found = [fault for fault in _shared_addresses(settings) if only in (None, fault.part)]
    for part in _CHECKS if only is None else (only,):
        try:
            _CHECKS[part](settings)
        except click.ClickException as e:
            found.append(Fault(part, e.format_message()))
        except ModuleNotFoundError:  # the part may run on another host, with the same file of settings
            continue
        except (OSError, ValueError) as e:
            found.append(Fault(part, str(e)))
    return found


def _shared_addresses(settings: Settings) -> Iterable[Fault]:
    """Parts that would listen at the same address. If one is the tap, it is a fault of the tap: the other could take its port."""
    used = [
        ("tap", "listen", settings.listen),
        ("tap", "admin", settings.admin),
        ("analyze", "metrics", settings.metrics),
        ("analyze", "otlp_listen", settings.otlp_listen),
        ("dashboard", "dashboard_listen", "" if settings.no_dashboard else settings.dashboard_listen),
        ("serve", "sql_listen", settings.sql_listen if settings.serve else ""),
    ]
    used = [(part, name, address) for part, name, address in used if address]
    for i, (part, name, address) in enumerate(used):
        for other_part, other_name, other in used[:i]:
            if {part, other_part} != {"tap"} and same_address(address, other):
                message = (
                    f"{flag(other_name)} and {flag(name)} have the same address {address}. Change one of them"
                )
                yield Fault("tap" if other_part == "tap" else part, message)


def _check_tap(settings: Settings) -> None:
    from streamgauge.ingest.tap.option_checks import check_options

    if settings.upstream:  # a host without a tap needs none
        check_options(tap_options(settings))


def _check_ship(settings: Settings) -> None:
    from streamgauge.ingest.record_log.kafka_client import check_options

    if settings.kafka:
        check_options(settings.kafka_options)


def _check_analyze(settings: Settings) -> None:
    options = analyze_options(settings)
    if options.otlp_listen:
        check_listener("--otlp-listen", options.otlp_listen, "--otlp-token", options.otlp_token)


def _check_dashboard(settings: Settings) -> None:
    options = dashboard_options(settings)
    from streamgauge.dashboard.launch import check

    check(options)


def _check_token(name: str, settings: Settings) -> None:
    check_token(flag(name), option_value(settings, name))


_CHECKS: dict[str, Callable[[Settings], None]] = {
    "tap": _check_tap,
    "ship": _check_ship,
    "analyze": _check_analyze,
    "serve": partial(_check_token, "sql_token"),
    "dashboard": _check_dashboard,
    "mcp": partial(_check_token, "mcp_token"),
}
