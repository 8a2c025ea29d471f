"""The settings model: flags, `STREAMGAUGE_*` variables and `streamgauge.toml` keys are generated from it.

Precedence: flags, environment, secrets folder, file, defaults. A field's description is its `--help` text and its row in the
configuration reference.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import socket
import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    HttpUrl,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from streamgauge.analytics.schema.budgets import Budget
from streamgauge.analytics.schema.clients import Client
from streamgauge.analytics.schema.objectives import DEFAULT, GLOBS, LIMITS, Objective
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.http1.upstreams import PRESETS, Upstream, parse_upstreams
from streamgauge.ingest.keyed_ids import MAX_HEADERS, parse_session_header
from streamgauge.ingest.labels import MAX_LABELS, Label
from streamgauge.ingest.listening import parse_allowed_host, split_address
from streamgauge.ingest.tap.http.rewriting import XForwarded
from streamgauge.ingest.tap.options import WebSockets
from streamgauge.settings.tables import (
    BUDGET,
    OBJECTIVE,
    SavedView,
    parse_budgets,
    parse_clients,
    parse_labels,
    parse_objectives,
    parse_saved_views,
)
from streamgauge.settings.values import (
    check_age,
    parse_capture,
    parse_duration_s,
    parse_interface,
    parse_seconds,
)

CONFIG_FILE = "streamgauge.toml"
PREFIX = "STREAMGAUGE_"
OTHER_VARIABLES = ("config", "interpreted", "secrets_dir")
"""Variables, without the prefix, that are not settings."""
RENAMED = {
    "capture_routes": "capture_content",
    "dashboard_allowed_host": "allowed_host",
    "dashboard_host": "dashboard_listen",
    "dashboard_port": "dashboard_listen",
    "data_path": "lake_path",
    "log_cap": "record_log_max_bytes",
    "mcp_host": "mcp_listen",
    "mcp_port": "mcp_listen",
    "no_x_forwarded": "x_forwarded",
    "quack_host": "sql_listen",
    "quack_port": "sql_listen",
    "quack_token": "sql_token",
    "sql_host": "sql_listen",
    "sql_port": "sql_listen",
}
"""Former names of settings."""
_OBJECTIVE = """use an objective without globs, such as --objectives '{"ttft": "2s", "itl": "100ms", "error_rate": 0.05}'"""
REMOVED = {
    "connect_timeout": "the limit is always 30s",
    "default_upstream": "the first --upstream is the default, unless it is on the Internet",
    "export_unsampled": "set OTEL_TRACES_SAMPLER=always_on",
    "forwarded": "upstreams get X-Forwarded-* headers, see --x-forwarded",
    "log_age": "the limit is always 7d",
    "no_otlp": "set OTEL_SDK_DISABLED=true",
    "no_spans": "set OTEL_TRACES_EXPORTER=none to export none; the table `spans` always has them",
    "preserve_host": "the Host of requests that the client signed for AWS is always kept",
    "record_log_max_age": "the limit is always 7d",
    "semconv": "set OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental for the newest conventions (…/dup: both)",
    "slo_error_rate": _OBJECTIVE,
    "slo_itl": _OBJECTIVE,
    "slo_ttft": _OBJECTIVE,
    "tap_gone_after": "the limit is always 24h",
    "tap_queue": "the limit is always 64MiB per worker",
    "via": "no gateway needs a Via header",
}
"""Settings that are constants now, or that a standard variable or header replaces."""
KUBERNETES = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$")
"""Ends of the variables that Kubernetes creates from the names of Services. The value of `…_PORT` is a URL."""
KAFKA_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
SIMILAR = 0.8
"""Least similarity of a misspelt name and the name it stands for. Lower values suggest unrelated names for short ones."""


def config_file() -> Path:
    """The configuration file. Raises ValueError if STREAMGAUGE_CONFIG names a missing file."""
    named = os.environ.get("STREAMGAUGE_CONFIG")
    if named and not Path(named).exists():
        raise ValueError(
            f"cannot read the configuration file {named}: no such file. Check --config or STREAMGAUGE_CONFIG."
        )
    return Path(named or CONFIG_FILE)


def secrets_dir() -> Path | None:
    """The folder whose files are settings: STREAMGAUGE_SECRETS_DIR, else systemd's credentials folder.

    The file `streamgauge_client_key` sets `client_key`. Raises ValueError if the folder does not exist.
    """
    named = os.environ.get("STREAMGAUGE_SECRETS_DIR") or os.environ.get("CREDENTIALS_DIRECTORY")
    if named and not Path(named).is_dir():
        raise ValueError(f"cannot read secrets from {named}: not a folder. Change STREAMGAUGE_SECRETS_DIR.")
    return Path(named) if named else None


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def correction(name: str, spell: Callable[[str], str], *others: str) -> str | None:
    """What to write instead of a former or misspelt name, as a sentence. None for a name that resembles no setting.

    `others`: names that are valid besides those of the settings.
    """
    name = name.lower()
    if name in REMOVED:
        return f"It was removed: {REMOVED[name]}."
    if name in RENAMED:
        return f"It is now {spell(RENAMED[name])}."
    # After the former names: `slo_itl` resembles nothing, but `log_age` resembles a current name.
    similar = difflib.get_close_matches(name, (*Settings.model_fields, *others), 1, SIMILAR)
    return f"Did you mean {spell(similar[0])}?" if similar else None


def unknown_variables() -> dict[str, str | None]:
    """Unknown STREAMGAUGE_* variables → the `correction` of each. Without those of Kubernetes."""
    known = {variable(name) for name in (*Settings.model_fields, *OTHER_VARIABLES)}
    return {
        name: correction(name[len(PREFIX) :], variable, *OTHER_VARIABLES)
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and name.upper() not in known
        # Kubernetes creates variables for each Service, also for one that is named like a setting of ours.
        if not KUBERNETES.search(name) and not value.startswith(("tcp://", "udp://", "sctp://"))
    }


def settings_of(*commands: str) -> tuple[str, ...]:
    """The settings of these commands. `up` has those of the parts, too."""
    wanted = {*commands, *(PARTS_OF_UP if "up" in commands else ())}
    return tuple(name for name in Settings.model_fields if wanted & {*about(name)["commands"]})


def about(name: str) -> dict[str, Any]:
    """Group, metavar and commands of a setting. Switches have no metavar."""
    extra: Any = Settings.model_fields[name].json_schema_extra
    return cast("dict[str, Any]", extra)


def option_name(name: str) -> str:
    """The field of an option dataclass that takes this setting: its name with the unit, in the plural for several values."""
    unit = {"DURATION": "_s", "BYTES": "_bytes"}.get(about(name)["metavar"] or "", "")
    several = get_origin(Settings.model_fields[name].annotation) is tuple and not name.endswith("s")
    return name.removesuffix(unit) + unit + ("s" if several else "")


def option_value(settings: Settings, name: str) -> Any:
    """The value as an option: secrets as text, ages in seconds, None for an empty text."""
    value = getattr(settings, name)
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, str) and about(name)["metavar"] == "DURATION":
        return parse_duration_s(value)
    return None if value == "" else value


def setting_sources(flags: Collection[str]) -> dict[str, str]:
    """Where each setting comes from: flag, environment, secrets folder, file or default. `flags` are given as flags."""
    sources = dict.fromkeys(Settings.model_fields, "default")
    path = config_file()
    if path.is_file():
        sources |= {name: f"file {path}" for name in tomllib.loads(path.read_text()) if name in sources}
    folder = secrets_dir()
    secrets = {p.name.lower() for p in folder.iterdir()} if folder is not None else set()
    environment = {name.upper() for name in os.environ}  # pydantic ignores the case of variables
    # In the order of precedence, which pydantic does not report.
    for name in sources:
        if name in flags:
            sources[name] = f"flag --{name.replace('_', '-')}"
        elif variable(name) in environment:
            sources[name] = f"environment {variable(name)}"
        elif variable(name).lower() in secrets:
            sources[name] = f"secrets folder {folder}"
    return sources


COMMON = "Common options"
TAP = "Advanced: tap"
TLS = "Advanced: TLS and forwarded headers"
RECORD_LOG = "Advanced: record log and Kafka"
STORE = "Advanced: store and retention"
MEASUREMENT = "Advanced: measurement and content"
TELEMETRY = "Advanced: traces, metrics and logs"
ALERTS = "Advanced: alerts"
DASHBOARD = "Advanced: dashboard"
SQL = "Advanced: SQL server"
MCP = "Advanced: MCP server"
GROUPS = (COMMON, TAP, TLS, RECORD_LOG, STORE, MEASUREMENT, TELEMETRY, ALERTS, DASHBOARD, SQL, MCP)
"""Groups of `--help`, in this order."""


def _list_of(kind: str, example: str, parse: Callable[[Sequence[Any]], tuple[Any, ...]]) -> BeforeValidator:
    """A list, or its items in one text. `NoDecode` besides it, because pydantic-settings would require JSON in variables."""

    def parse_list(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str | Upstream) for item in value):
            raise ValueError(f"the value is not a list of {kind} such as {[example]}")
        return parse(value)

    return BeforeValidator(parse_list)


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """The value as it is, unless it is empty and `check` raises ValueError."""

    def checked(value: Any) -> Any:
        if value:
            check(value)
        return value

    return AfterValidator(checked)


def check_http_url(url: str) -> None:
    """Raise ValueError, without the URL, unless it is one of http or https with a host."""
    try:
        TypeAdapter(HttpUrl).validate_python(url)
    except ValidationError:  # its message shows the URL, which is a secret
        raise ValueError("the value is not an http or https URL") from None


def check_http_urls(urls: str) -> None:
    """As `check_http_url`, for URLs with spaces between them."""
    for url in urls.split():
        check_http_url(url)


def _parse_session_headers(names: Sequence[Any]) -> tuple[Any, ...]:
    for name in names:
        parse_session_header(name)
    if len(names) > MAX_HEADERS:
        raise ValueError(f"there are {len(names)} headers, above the limit of {MAX_HEADERS}")
    return tuple(names)


def _parse_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as e:
        raise ValueError(f"the value is not JSON: {e}") from None


def _check_address(value: str) -> str:
    split_address(value)
    return value


def _check_topic(value: str) -> str:
    if not KAFKA_TOPIC.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a Kafka topic: use letters, digits, '.', '_' and '-'")
    return value


def _check_hung_after(value: float) -> None:
    if value < LEAST_HUNG_AFTER_S:
        raise ValueError(f"{value:g}s is not 0 or at least {LEAST_HUNG_AFTER_S:g}s")


Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Age = Annotated[str | None, AfterValidator(check_age)]
"""A duration with its unit, or 'forever'. It stays text, because a child process and `config check` show it as it was given."""
Address = Annotated[str, AfterValidator(_check_address)]
OptionalAddress = Annotated[str, _checked(split_address)]
"""Empty: the port is not opened."""
Upstreams = Annotated[
    tuple[Upstream, ...], NoDecode, _list_of("URLs", "http://localhost:4000", parse_upstreams)
]
SessionHeaders = Annotated[
    tuple[str, ...], NoDecode, _list_of("header names", "x-my-session", _parse_session_headers)
]
HostNames = Annotated[
    tuple[str, ...],
    NoDecode,
    _list_of("host names", "gauge.example.com", lambda names: tuple(map(parse_allowed_host, names))),
]
LEAST_HUNG_AFTER_S = 10.0
"""`up` needs 5 s to detect that a starting part uses the CPU, and longer on a busy machine."""
PARTS_OF_UP = ("tap", "capture", "ship", "analyze", "serve", "dashboard")
PARTS = " ".join(PARTS_OF_UP)


def _setting(
    group: str, commands: str, metavar: str | None, description: str, default: Any = None, **field: Any
) -> Any:
    """A field with everything that is said about the setting. `commands`: those that run a part with this setting.

    An option of the part has the name that `option_name` returns, and takes its value from here.
    """
    extra: dict[str, Any] = {"group": group, "metavar": metavar, "commands": tuple(commands.split())}
    if "default_factory" not in field:
        field["default"] = default
    return Field(description=description, json_schema_extra=extra, **field)


def _switch(group: str, commands: str, description: str) -> Any:
    return _setting(group, commands, None, description, default=False)


class Settings(BaseSettings):
    """All settings. Sizes are bytes and durations seconds, unless the value has a unit (`64MiB`, `30s`)."""

    # A misspelt key must not be ignored, and a limit of "inf" or "nan" would never be reached without an error.
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", allow_inf_nan=False)

    # fmt: off
    upstream: Upstreams = _setting(
        COMMON, "tap", "[NAME=]URL",
        "Gateway or inference server; repeatable, selected by path prefix /NAME/, header x-streamgauge-upstream or Host, by default "
        f"the first, unless that is on the Internet. A name alone is a provider: {', '.join(PRESETS)}.",
        default=())
    listen: Address = _setting(COMMON, "tap", "HOST:PORT", "Address for client requests.", default="127.0.0.1:4100")
    data: Path = _setting(COMMON, PARTS + " mcp", "FOLDER", "Data folder.", default=Path("streamgauge-data"))
    dashboard_listen: Address = _setting(
        COMMON, "dashboard", "HOST:PORT", "Address of the dashboard; port 0 = any free port.", default="127.0.0.1:8501")
    no_dashboard: bool = _switch(COMMON, "up", "Do not start the dashboard.")
    kafka: Annotated[str | None, _checked(lambda brokers: list(map(split_address, brokers.split(","))))] = _setting(
        COMMON, "ship analyze", "HOST:PORT", "Kafka brokers for the record log, separated by commas.")
    workers: int = _setting(COMMON, "tap", "N", "Worker processes of the tap.", default=1, ge=1, le=256)
    serve: bool = _switch(COMMON, "up", "Also start the read-only SQL server (`serve`).")
    hung_after: Annotated[Seconds, _checked(_check_hung_after)] = _setting(
        COMMON, "up", "DURATION", "Kill and restart a part that makes no progress for this long, at least 10s; 0 = never.",
        default=60.0, ge=0)
    capture_content: Annotated[str | None, BeforeValidator(parse_capture)] = _setting(
        COMMON, "ship analyze", "[GLOBS]",
        "Store generated text and error messages, and do not redact what is sent to Kafka. GLOBS limit it to request paths, such as "
        "/v1/chat/*,/v1/messages.")
    objectives: Annotated[tuple[Objective, ...], NoDecode, BeforeValidator(parse_objectives)] = _setting(
        COMMON, "analyze", "JSON",
        "Objective of the streams that its globs match, such as " + OBJECTIVE + "; repeatable, the first match applies. One without "
        "globs replaces the default.", default=())
    retain_streams: Age = _setting(
        COMMON, "analyze", "DURATION", "Delete rows of streams older than this; 'forever' keeps them.", default="90d")

    admin: Address = _setting(
        TAP, "tap", "HOST:PORT", "Address of the tap's /healthz, /readyz, /recordingz and /metrics.", default="127.0.0.1:4101")
    tap_name: str = _setting(TAP, "tap capture", "NAME", "Name of this tap in every row.", default_factory=socket.gethostname)
    capture: Annotated[str, _checked(parse_interface)] = _setting(
        TAP, "up", "INTERFACE[:PORT,…]",
        "Also record the requests that packets on this interface show (`capture`), such as lo:4000. Needs CAP_NET_RAW.", default="")
    client_key: SecretStr | None = _setting(
        TAP, "tap capture ship analyze", "SECRET", "Secret for hashing API keys and session ids; by default generated in the data folder.")
    session_header: SessionHeaders = _setting(
        TAP, "tap capture", "NAME[:plain]",
        "Header with a session id, besides those of well-known clients; repeatable. Values are hashed unless declared :plain.",
        default=())
    labels: Annotated[tuple[Label, ...], NoDecode, BeforeValidator(parse_labels)] = _setting(
        TAP, "tap capture ship analyze", "NAME=SOURCE[:plain][:prometheus]",
        f"Label of streams, from header:NAME, path:NUMBER, body:MEMBER.MEMBER or client_app; repeatable, at most {MAX_LABELS}. Values are "
        "hashed unless declared :plain.", default=())
    headers_timeout: Seconds = _setting(
        TAP, "tap", "DURATION", "Longest upstream silence before the first response byte; 0 = no limit.", default=0.0, ge=0)
    idle_timeout: Seconds = _setting(
        TAP, "tap", "DURATION", "Longest upstream silence within a response; 0 = no limit.", default=0.0, ge=0)
    idle_output_timeout: Seconds = _setting(
        TAP, "tap", "DURATION", "Like --idle-timeout, but comments (keep-alives) do not reset it; 0 = no limit.",
        default=0.0, ge=0)
    max_request_bytes: ByteSize = _setting(
        TAP, "tap", "BYTES", "Reject larger request bodies with status 413; 0 = no limit.", default=ByteSize(0), ge=0)
    relay: Literal["auto", "native", "python"] = _setting(
        TAP, "tap", "auto|native|python",
        "Implementation that forwards and records: native (compiled) or python; auto = native if installed.", default="auto")
    websockets: WebSockets = _setting(
        TAP, "tap", "forward|refuse",
        "Forward and record WebSockets, or answer upgrades with status 426: clients such as Codex then use HTTP.",
        default="forward")
    drain_timeout: Seconds = _setting(
        TAP, "tap", "DURATION", "Time for open streams to finish after SIGTERM.", default=20.0, ge=0)

    upstream_ca: Path | None = _setting(
        TLS, "tap", "FILE", "CA certificates (PEM) for https upstreams, instead of the system's.")
    upstream_cert: Path | None = _setting(TLS, "tap", "FILE", "Client certificate (PEM) for https upstreams.")
    upstream_key: Path | None = _setting(TLS, "tap", "FILE", "Key of --upstream-cert (PEM), if in a separate file.")
    tls_cert: Path | None = _setting(TLS, "tap", "FILE", "Server certificate (PEM); the tap then serves https.")
    tls_key: Path | None = _setting(TLS, "tap", "FILE", "Key of --tls-cert (PEM).")
    x_forwarded: XForwarded = _setting(
        TLS, "tap", "always|private|never", "Send X-Forwarded-* headers upstream; private = not to https upstreams on the Internet.",
        default="private")

    record_log_max_bytes: ByteSize = _setting(
        RECORD_LOG, "tap capture", "BYTES", "Size limit of the tap's record log, for all workers together.",
        default=ByteSize(2 * 2**30), ge=2**20)
    kafka_topic: Annotated[str, AfterValidator(_check_topic)] = _setting(
        RECORD_LOG, "ship analyze", "TOPIC", "Kafka topic of the record log.", default="streamgauge")
    kafka_options: Annotated[dict[str, Any], NoDecode, BeforeValidator(_parse_json)] = _setting(
        RECORD_LOG, "ship analyze", "JSON", "kafka-python client options, such as security_protocol or ssl_cafile.",
        default_factory=dict)

    store: str = _setting(
        STORE, "analyze serve dashboard mcp", "sqlite|postgres:DSN",
        "Catalog of the tables: DATA/catalog.sqlite, or PostgreSQL shared by several hosts.", default="sqlite", repr=False)
    lake_path: str | None = _setting(
        STORE, "analyze", "FOLDER|s3://…", "Parquet folder shared by all hosts; requires --store postgres:DSN.")
    retain_events: Age = _setting(
        STORE, "analyze", "DURATION", "Delete rows of events older than this; 'forever' keeps them.", default="7d")
    retain_rollups: Age = _setting(
        STORE, "analyze", "DURATION", "Delete roll-ups older than this, but never before the streams they count.", default="400d")

    stall_floor: Seconds = _setting(
        MEASUREMENT, "analyze dashboard", "DURATION", "Gaps up to this length are never stalls.",
        default=StallLimit().floor_ns / 1e9, gt=0)
    stall_factor: float = _setting(
        MEASUREMENT, "analyze dashboard", "N", "A stall is longer than N times the median gap of its stream.",
        default=StallLimit().factor, gt=0)
    clients: Annotated[tuple[Client, ...], NoDecode, BeforeValidator(parse_clients)] = _setting(
        MEASUREMENT, "analyze", "ID=NAME", "Name of a client id, shown instead of it; repeatable.", default=())
    price_file: Path | None = _setting(
        MEASUREMENT, "analyze", "FILE", "CSV or TOML file with prices of tokens, for estimates of cost.")
    budgets: Annotated[tuple[Budget, ...], NoDecode, BeforeValidator(parse_budgets)] = _setting(
        MEASUREMENT, "analyze", "JSON",
        "Budget for the estimated cost of the requests that its globs match, such as " + BUDGET + "; repeatable. Needs --price-file.",
        default=())

    metrics: OptionalAddress = _setting(
        TELEMETRY, "analyze", "HOST:PORT", "Address of analytics' Prometheus /metrics and /recordingz; empty = off.",
        default="127.0.0.1:4102")
    server_metrics: bool = _switch(
        TELEMETRY, "analyze",
        "Also export the metrics of model servers in the GenAI conventions, for a tap directly before them.")
    otlp_listen: OptionalAddress = _setting(
        TELEMETRY, "analyze", "HOST:PORT", "Address of the OTLP/HTTP receiver for spans, such as 127.0.0.1:4318; empty = off.",
        default="")
    otlp_token: SecretStr | None = _setting(
        TELEMETRY, "analyze", "SECRET",
        "Bearer token of senders of spans and markers; required if they are on other machines.")
    allowed_host: HostNames = _setting(
        TELEMETRY, "tap capture analyze dashboard mcp", "NAME",
        "Host name in requests, such as that of a reverse proxy, besides localhost and this machine's name; repeatable. IP addresses "
        "are always allowed. For --dashboard-listen, --admin, --metrics, --mcp-listen and, without a token, --otlp-listen.", default=())
    log_format: Literal["text", "json"] = _setting(
        TELEMETRY, PARTS + " mcp", "text|json", "Format of log lines on stderr.", default="text")

    alert_silence: Seconds = _setting(
        ALERTS, "analyze", "DURATION", "Alert when a stream that has produced output is silent for longer; 0 = off.",
        default=5.0, ge=0)
    alert_first_output: Seconds = _setting(
        ALERTS, "analyze", "DURATION", "Alert when a request has no output after this time; 0 = off.", default=60.0, ge=0)
    alert_quiet: Seconds = _setting(
        ALERTS, "analyze", "DURATION",
        "Least time between two messages about the same incident, or about one rule at the same gateway or model.",
        default=600.0, ge=0)
    alert_webhook: Annotated[SecretStr | None, _checked(lambda urls: check_http_urls(urls.get_secret_value()))] = _setting(
        ALERTS, "analyze", "URL",
        "Receiver of alerts: Slack, PagerDuty, Alertmanager, or any that takes JSON; several with spaces between them.")
    alert_routing_key: SecretStr | None = _setting(
        ALERTS, "analyze", "SECRET", "Integration key of PagerDuty (Events API v2).")
    dashboard_url: Annotated[str | None, _checked(check_http_url)] = _setting(
        ALERTS, "analyze", "URL", "Address of the dashboard in the links of alerts; by default that of the running dashboard.")

    dashboard_token: SecretStr | None = _setting(
        DASHBOARD, "dashboard", "SECRET", "Token for access from other machines; by default generated in the data folder.")
    dashboard_oidc: Path | None = _setting(
        DASHBOARD, "dashboard", "FILE", "TOML file of an OpenID Connect provider; sign-in then replaces the token.")
    saved_views: Annotated[tuple[SavedView, ...], NoDecode, BeforeValidator(parse_saved_views)] = _setting(
        DASHBOARD, "dashboard", "NAME=ADDRESS",
        "Named page with its time range and filters, listed in the sidebar of the dashboard; repeatable.", default=())

    sql_listen: Address = _setting(
        SQL, "serve", "HOST:PORT", "Address of the SQL server; port 0 = any free port.", default="localhost:9494")
    sql_token: SecretStr | None = _setting(
        SQL, "serve", "SECRET", "SQL server token, at least 16 characters; by default generated.")

    mcp_listen: Address = _setting(
        MCP, "mcp", "HOST:PORT", "Address of the MCP server with --http; port 0 = any free port.", default="127.0.0.1:9495")
    mcp_token: SecretStr | None = _setting(
        MCP, "mcp", "SECRET", "MCP server token, at least 16 characters; by default generated.")
    # fmt: on

    # A combination of settings is checked at the later field, so that each error names the setting, and thus its parts.

    @field_validator("store")
    @classmethod
    def _store(cls, value: str) -> str:
        locate(value, Path())  # only the check: the data folder may come from another source
        return value

    @field_validator("lake_path")
    @classmethod
    def _lake_path(cls, value: str | None, info: ValidationInfo) -> str | None:
        if "store" in info.data:
            locate(info.data["store"], Path(), value)
        return value

    @property
    def all_objectives(self) -> tuple[Objective, ...]:
        """The objectives in the order of their priority, the default one last: the first without globs, if there is one.

        It has the default's limits where it has none, so that the dashboard has a limit for each figure.
        """
        for i, found in enumerate(self.objectives):
            if all(getattr(found, glob) == "*" for glob in GLOBS):
                limits = {key: value for key in LIMITS if (value := getattr(found, key)) is not None}
                return (
                    *self.objectives[:i],
                    replace(DEFAULT, name=found.name, severity=found.severity, **limits),
                )
        return (*self.objectives, DEFAULT)

    @property
    def captured_routes(self) -> tuple[str, ...]:
        """Globs of the request paths whose content is captured."""
        return tuple((self.capture_content or "").replace(",", " ").split())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # No .env file: one that belongs to another program in the working directory must not change the settings.
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        if (folder := secrets_dir()) is not None:
            sources += (SecretsSettingsSource(settings_cls, secrets_dir=folder),)
        path = config_file()
        if path.is_file():
            sources += (TomlConfigSettingsSource(settings_cls, path),)
        return sources
