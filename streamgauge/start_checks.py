"""The checks of the settings of each part, which `up` and `config check` do before a start.

Each part does the same checks when it starts. `up` refuses to start only for faults of the tap; other parts report their
own. No check opens a port of a setting, because the parts may be running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import click

from streamgauge.flags_from_settings import flag
from streamgauge.ingest.addresses import join_address, same_address
from streamgauge.ingest.bearer_tokens import check_listener, check_token
from streamgauge.settings import Settings


class Fault(NamedTuple):
    """A part would not start."""

    part: str
    message: str


def start_faults(settings: Settings, only: str | None = None) -> list[Fault]:
    """The faults of one part or of all, in one line each. Parts whose extra is not installed here are not checked."""
    found = [fault for fault in _shared_addresses(settings) if only in (None, fault.part)]
    for part in _CHECKS if only is None else (only,):
        try:
            _CHECKS[part](settings)
        except click.ClickException as e:
            found.append(Fault(part, e.format_message()))
        except ModuleNotFoundError:
            continue
        except (OSError, ValueError) as e:
            found.append(Fault(part, str(e)))
    return found


def _shared_addresses(settings: Settings) -> Iterable[Fault]:
    """Parts that would listen at the same address. If one is the tap, it is a fault of the tap: the other could take its port."""
    dashboard = join_address(settings.dashboard_host, settings.dashboard_port)
    serve = join_address(settings.sql_host, settings.sql_port)
    used = [
        ("tap", "listen", settings.listen),
        ("tap", "admin", settings.admin),
        ("analyze", "metrics", settings.metrics),
        ("analyze", "otlp_listen", settings.otlp_listen),
        ("dashboard", "dashboard_port", "" if settings.no_dashboard else dashboard),
        ("serve", "sql_port", serve if settings.serve else ""),
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
    from streamgauge.part_options import tap_options

    if settings.upstream:  # a host without a tap needs none
        check_options(tap_options(settings))


def _check_ship(settings: Settings) -> None:
    from streamgauge.ingest.record_log.kafka_client import check_options

    if settings.kafka:
        check_options(settings.kafka_options)


def _check_analyze(settings: Settings) -> None:
    from streamgauge.part_options import analyze_options

    options = analyze_options(settings)
    if options.otlp_listen:
        check_listener("--otlp-listen", options.otlp_listen, "--otlp-token", options.otlp_token)


def _check_dashboard(settings: Settings) -> None:
    from streamgauge.dashboard.launch import check
    from streamgauge.part_options import dashboard_options

    check(dashboard_options(settings))


def _check_token(name: str, settings: Settings) -> None:
    found = getattr(settings, name)
    check_token(flag(name), found.get_secret_value() if found else None)


_CHECKS: dict[str, Callable[[Settings], None]] = {
    "tap": _check_tap,
    "ship": _check_ship,
    "analyze": _check_analyze,
    "serve": partial(_check_token, "sql_token"),
    "dashboard": _check_dashboard,
    "mcp": partial(_check_token, "mcp_token"),
}
