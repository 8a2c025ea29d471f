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
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    SecretStr,
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

from streamgauge.analytics.alerts.webhook_url import check_url
from streamgauge.analytics.schema.clients import Client
from streamgauge.analytics.schema.objectives import DEFAULT, Objective
from streamgauge.analytics.storage.location import locate
from streamgauge.client_names import parse_clients
from streamgauge.durations import parse_duration_s, parse_seconds
from streamgauge.ingest.addresses import split_address
from streamgauge.ingest.allowed_hosts import parse_allowed_host
from streamgauge.ingest.session_ids import MAX_HEADERS, parse_session_header
from streamgauge.ingest.tap.header_rewrite import XForwarded
from streamgauge.ingest.tap.upstreams import Upstream, default_index, parse_upstreams
from streamgauge.objective_tables import EXAMPLE, parse_objectives
from streamgauge.saved_views import SavedView, parse_saved_views

CONFIG_FILE = "streamgauge.toml"
PREFIX = "STREAMGAUGE_"
OTHER_VARIABLES = ("CONFIG", "SECRETS_DIR")
"""Variables, without the prefix, that are not settings."""
RENAMED = {
    "data_path": "lake_path",
    "log_age": "record_log_max_age",
    "log_cap": "record_log_max_bytes",
    "no_x_forwarded": "x_forwarded",
    "quack_host": "sql_host",
    "quack_port": "sql_port",
    "quack_token": "sql_token",
}
"""Former names of settings."""
KUBERNETES = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$")
"""Ends of the variables that Kubernetes creates from the names of Services. The value of `…_PORT` is a URL."""
KAFKA_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
SIMILAR = 0.8
"""Least similarity of a misspelt name and the name it stands for."""


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


def correct_name(name: str) -> str | None:
    """The setting that a misspelt or former name stands for."""
    similar = difflib.get_close_matches(name.lower(), Settings.model_fields, 1, SIMILAR)
    return RENAMED.get(name.lower()) or (similar[0] if similar else None)


def unknown_variables() -> dict[str, str | None]:
    """Unknown STREAMGAUGE_* variables → the one that each stands for, if any. Without those of Kubernetes."""
    known = {variable(name) for name in (*Settings.model_fields, *OTHER_VARIABLES)}
    found: dict[str, str | None] = {}
    for name, value in os.environ.items():
        if not name.upper().startswith(PREFIX) or name.upper() in known:
            continue
        if KUBERNETES.search(name) or value.startswith(("tcp://", "udp://", "sctp://")):
            continue
        suffix = name[len(PREFIX) :].upper()
        other = difflib.get_close_matches(suffix, OTHER_VARIABLES, 1, SIMILAR)
        setting = other[0] if other else correct_name(suffix)
        found[name] = variable(setting) if setting else None
    return found


def setting_sources(flags: Collection[str]) -> dict[str, str]:
    """Where each setting comes from: flag, environment, secrets folder, file or default. `flags` are given as flags."""
    sources = dict.fromkeys(Settings.model_fields, "default")
    path = config_file()
    if path.is_file():
        sources |= {name: f"file {path}" for name in tomllib.loads(path.read_text()) if name in sources}
    folder = secrets_dir()
    secrets = {p.name.lower() for p in folder.iterdir()} if folder is not None else set()
    environment = {name.upper() for name in os.environ}
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

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
LEAST_HUNG_AFTER_S = 10.0
"""`up` needs 5 s to detect that a starting part uses the CPU, and longer on a busy machine."""


def _setting(group: str, metavar: str | None, description: str, default: Any = None, **field: Any) -> Any:
    extra: dict[str, Any] = {"group": group, "metavar": metavar}
    if "default_factory" not in field:
        field["default"] = default
    return Field(description=description, json_schema_extra=extra, **field)


def _switch(group: str, description: str) -> Any:
    return _setting(group, None, description, default=False)


class Settings(BaseSettings):
    """All settings. Sizes are bytes and durations seconds, unless the value has a unit (`64MiB`, `30s`)."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", allow_inf_nan=False)

    # fmt: off
    upstream: Annotated[tuple[Upstream, ...], NoDecode] = _setting(
        COMMON, "[NAME=]URL",
        "Gateway or inference server; repeatable, selected by path prefix /NAME/ or header x-streamgauge-upstream.",
        default=())
    listen: str = _setting(COMMON, "HOST:PORT", "Address for client requests.", default="127.0.0.1:4100")
    data: Path = _setting(COMMON, "FOLDER", "Data folder.", default=Path("streamgauge-data"))
    dashboard_port: int = _setting(COMMON, "PORT", "Dashboard port; 0 = any free port.", default=8501, ge=0, le=65535)
    no_dashboard: bool = _switch(COMMON, "Do not start the dashboard.")
    kafka: str | None = _setting(
        COMMON, "HOST:PORT", "Kafka brokers for the record log, separated by commas.")
    workers: int = _setting(COMMON, "N", "Worker processes of the tap.", default=1, ge=1, le=256)
    serve: bool = _switch(COMMON, "Also start the read-only SQL server (`serve`).")
    hung_after: Seconds = _setting(
        COMMON, "DURATION", "Kill and restart a part that makes no progress for this long, at least 10s; 0 = never.", default=60.0, ge=0)
    capture_content: bool = _switch(
        COMMON, "Store generated text and error messages; do not redact prompts and text sent to Kafka.")

    default_upstream: str | None = _setting(
        TAP, "NAME",
        "Upstream of several for requests that name none; by default the first, 'none' answers them with status 404.")
    admin: str = _setting(
        TAP, "HOST:PORT", "Address of the tap's /healthz, /readyz, /recordingz and /metrics.", default="127.0.0.1:4101")
    tap_name: str = _setting(TAP, "NAME", "Name of this tap in every row.", default_factory=socket.gethostname)
    client_key: SecretStr | None = _setting(
        TAP, "SECRET", "Secret for hashing API keys and session ids; by default generated in the data folder.")
    session_header: Annotated[tuple[str, ...], NoDecode] = _setting(
        TAP, "NAME[:plain]", "Header with a session id, besides those of well-known clients; repeatable. Values are hashed unless "
        "declared :plain.", default=())
    tap_queue: ByteSize = _setting(
        TAP, "BYTES", "Memory limit per worker for records not yet written to the record log.",
        default=ByteSize(64 * 2**20), ge=2**16)
    connect_timeout: Seconds = _setting(
        TAP, "DURATION", "Time limit for connecting to the upstream; 0 = no limit.", default=30.0, ge=0)
    headers_timeout: Seconds = _setting(
        TAP, "DURATION", "Longest upstream silence before the first response byte; 0 = no limit.", default=0.0, ge=0)
    idle_timeout: Seconds = _setting(
        TAP, "DURATION", "Longest upstream silence within a response; 0 = no limit.", default=0.0, ge=0)
    idle_output_timeout: Seconds = _setting(
        TAP, "DURATION", "Like --idle-timeout, but comments (keep-alives) do not reset it; 0 = no limit.",
        default=0.0, ge=0)
    max_request_bytes: ByteSize = _setting(
        TAP, "BYTES", "Reject larger request bodies with status 413; 0 = no limit.", default=ByteSize(0), ge=0)
    relay: Literal["auto", "native", "python"] = _setting(
        TAP, "auto|native|python", "Implementation that forwards and records: native (compiled) or python; auto = native if installed.",
        default="auto")
    drain_timeout: Seconds = _setting(
        TAP, "DURATION", "Time for open streams to finish after SIGTERM.", default=20.0, ge=0)

    upstream_ca: Path | None = _setting(
        TLS, "FILE", "CA certificates (PEM) for https upstreams, instead of the system's.")
    upstream_cert: Path | None = _setting(TLS, "FILE", "Client certificate (PEM) for https upstreams.")
    upstream_key: Path | None = _setting(TLS, "FILE", "Key of --upstream-cert (PEM), if in a separate file.")
    tls_cert: Path | None = _setting(TLS, "FILE", "Server certificate (PEM); the tap then serves https.")
    tls_key: Path | None = _setting(TLS, "FILE", "Key of --tls-cert (PEM).")
    x_forwarded: XForwarded = _setting(
        TLS, "always|private|never", "Send X-Forwarded-* headers upstream; private = not to https upstreams on the Internet.",
        default="private")
    forwarded: bool = _switch(TLS, "Send a Forwarded header (RFC 7239) upstream.")
    via: bool = _switch(TLS, "Send a Via header upstream.")
    preserve_host: bool = _switch(TLS, "Send the client's Host header upstream.")

    record_log_max_bytes: ByteSize = _setting(
        RECORD_LOG, "BYTES", "Size limit of the tap's record log, for all workers together.",
        default=ByteSize(2 * 2**30), ge=2**20)
    record_log_max_age: str | None = _setting(
        RECORD_LOG, "DURATION", "Drop unread log data older than this and record it as lost; 'forever' keeps it.",
        default="7d")
    kafka_topic: str = _setting(RECORD_LOG, "TOPIC", "Kafka topic of the record log.", default="streamgauge")
    kafka_options: Annotated[dict[str, Any], NoDecode] = _setting(
        RECORD_LOG, "JSON", "kafka-python client options, such as security_protocol or ssl_cafile.",
        default_factory=dict)

    store: str = _setting(
        STORE, "sqlite|postgres:DSN", "Catalog of the tables: DATA/catalog.sqlite, or PostgreSQL shared by several hosts.",
        default="sqlite", repr=False)
    lake_path: str | None = _setting(
        STORE, "FOLDER|s3://…", "Parquet folder shared by all hosts; requires --store postgres:DSN.")
    retain_events: str | None = _setting(
        STORE, "DURATION", "Delete rows of events older than this; 'forever' keeps them.", default="7d")
    retain_streams: str | None = _setting(
        STORE, "DURATION", "Delete rows of streams older than this; 'forever' keeps them.", default="90d")
    retain_rollups: str | None = _setting(
        STORE, "DURATION", "Delete roll-ups older than this, but never before the streams they count.",
        default="400d")

    capture_routes: str | None = _setting(
        MEASUREMENT, "GLOBS", "Limit --capture-content to these request paths, such as /v1/chat/*,/v1/messages.")
    stall_floor: Seconds = _setting(MEASUREMENT, "DURATION", "Gaps up to this length are never stalls.", default=0.5, gt=0)
    stall_factor: float = _setting(
        MEASUREMENT, "N", "A stall is longer than N times the median gap of its stream.", default=5.0, gt=0)
    objectives: Annotated[tuple[Objective, ...], NoDecode] = _setting(
        MEASUREMENT, "JSON",
        "Objective of the streams that its globs match, such as " + EXAMPLE + "; repeatable, the first match applies.",
        default=())
    clients: Annotated[tuple[Client, ...], NoDecode] = _setting(
        MEASUREMENT, "ID=NAME", "Name of a client id, shown instead of it; repeatable.", default=())
    price_file: Path | None = _setting(
        MEASUREMENT, "FILE", "CSV or TOML file with prices of tokens, for the cost of wasted tokens.")
    slo_ttft: Seconds = _setting(
        MEASUREMENT, "DURATION", "Time to first token of the default objective.", default=2.0, gt=0)
    slo_itl: Seconds = _setting(
        MEASUREMENT, "DURATION", "Inter-token latency of the default objective.", default=0.1, gt=0)
    slo_error_rate: float = _setting(
        MEASUREMENT, "SHARE", "Share of failed streams of the default objective.", default=0.05, ge=0, le=1)
    tap_gone_after: str | None = _setting(
        MEASUREMENT, "DURATION", "Mark open streams as lost when their tap sends nothing for this long, but other taps do.",
        default="24h")

    metrics: str = _setting(
        TELEMETRY, "HOST:PORT", "Address of analytics' Prometheus /metrics and /recordingz; empty = off.", default="127.0.0.1:4102")
    semconv: Literal["1.41", "genai-main"] = _setting(
        TELEMETRY, "1.41|genai-main", "Version of the GenAI semantic conventions for spans and metrics.",
        default="1.41")
    server_metrics: bool = _switch(
        TELEMETRY, "Also export the metrics of model servers in the GenAI conventions, for a tap directly before them.")
    no_spans: bool = _switch(TELEMETRY, "Do not create spans for streams.")
    no_otlp: bool = _switch(TELEMETRY, "Do not export over OTLP, even if OTEL_EXPORTER_OTLP_ENDPOINT is set.")
    export_unsampled: bool = _switch(TELEMETRY, "Also export spans of traces that the caller did not sample.")
    otlp_listen: str = _setting(
        TELEMETRY, "HOST:PORT", "Address of the OTLP/HTTP receiver for spans, such as 127.0.0.1:4318; empty = off.",
        default="")
    otlp_token: SecretStr | None = _setting(
        TELEMETRY, "SECRET", "Bearer token of senders of spans and markers; required if they are on other machines.")
    allowed_host: Annotated[tuple[str, ...], NoDecode] = _setting(
        TELEMETRY, "NAME", "Host name in requests to --admin, --metrics, --mcp-port and, without a token, --otlp-listen, besides localhost "
        "and this machine's name; repeatable. IP addresses are always allowed.", default=())
    log_format: Literal["text", "json"] = _setting(
        TELEMETRY, "text|json", "Format of log lines on stderr.", default="text")

    alert_silence: Seconds = _setting(
        ALERTS, "DURATION", "Alert when a stream that has produced output is silent for longer; 0 = off.", default=5.0, ge=0)
    alert_first_output: Seconds = _setting(
        ALERTS, "DURATION", "Alert when a request has no output after this time; 0 = off.", default=60.0, ge=0)
    alert_webhook: SecretStr | None = _setting(
        ALERTS, "URL", "Receiver of alerts as JSON, such as an incoming webhook of Slack.")

    dashboard_host: str = _setting(DASHBOARD, "HOST", "Address that the dashboard listens on.", default="127.0.0.1")
    dashboard_token: SecretStr | None = _setting(
        DASHBOARD, "SECRET", "Token for access from other machines; by default generated in the data folder.")
    dashboard_oidc: Path | None = _setting(
        DASHBOARD, "FILE", "TOML file of an OpenID Connect provider; sign-in then replaces the token.")
    dashboard_allowed_host: Annotated[tuple[str, ...], NoDecode] = _setting(
        DASHBOARD, "NAME", "Host name of the dashboard, such as that of a reverse proxy, besides localhost and this "
        "machine's name; repeatable. IP addresses are always allowed.", default=())
    saved_views: Annotated[tuple[SavedView, ...], NoDecode] = _setting(
        DASHBOARD, "NAME=ADDRESS", "Named page with its time range and filters, listed in the sidebar of the dashboard; repeatable.",
        default=())

    sql_host: str = _setting(SQL, "HOST", "Address that the SQL server listens on.", default="localhost")
    sql_port: int = _setting(SQL, "PORT", "SQL server port; 0 = any free port.", default=9494, ge=0, le=65535)
    sql_token: SecretStr | None = _setting(
        SQL, "SECRET", "SQL server token, at least 16 characters; by default generated.")

    mcp_host: str = _setting(MCP, "HOST", "Address that the MCP server listens on with --http.", default="127.0.0.1")
    mcp_port: int = _setting(MCP, "PORT", "MCP server port; 0 = any free port.", default=9495, ge=0, le=65535)
    mcp_token: SecretStr | None = _setting(
        MCP, "SECRET", "MCP server token, at least 16 characters; by default generated.")
    # fmt: on

    # A combination of settings is checked at the later field, so that each error names the setting, and thus its parts.

    @field_validator("store")
    @classmethod
    def _store(cls, value: str) -> str:
        locate(value, Path())
        return value

    @field_validator("lake_path")
    @classmethod
    def _lake_path(cls, value: str | None, info: ValidationInfo) -> str | None:
        if "store" in info.data:
            locate(info.data["store"], Path(), value)
        return value

    @field_validator("default_upstream")
    @classmethod
    def _default_upstream(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("upstream"):
            default_index(info.data["upstream"], value)
        return value

    @field_validator("kafka_options", mode="before")
    @classmethod
    def _json(cls, value: Any) -> Any:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError as e:
            raise ValueError(f"the value is not JSON: {e}") from None

    @field_validator("alert_webhook")
    @classmethod
    def _webhook(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_url(value.get_secret_value())
        return value

    @field_validator("hung_after")
    @classmethod
    def _not_shorter_than_a_busy_start(cls, value: float) -> float:
        if 0 < value < LEAST_HUNG_AFTER_S:
            raise ValueError(f"{value:g}s is not 0 or at least {LEAST_HUNG_AFTER_S:g}s")
        return value

    @field_validator("upstream", mode="before")
    @classmethod
    def _upstreams(cls, value: Any) -> tuple[Upstream, ...]:
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        if not isinstance(value, list | tuple) or not all(isinstance(v, str | Upstream) for v in value):
            raise ValueError("the value is not a list of URLs such as ['http://localhost:4000']")
        return parse_upstreams(value)

    @field_validator("session_header", mode="before")
    @classmethod
    def _session_headers(cls, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            raise ValueError("the value is not a list of header names such as ['x-my-session']")
        for name in value:
            parse_session_header(name)
        if len(value) > MAX_HEADERS:
            raise ValueError(f"there are {len(value)} headers, above the limit of {MAX_HEADERS}")
        return tuple(value)

    @field_validator("objectives", mode="before")
    @classmethod
    def _objectives(cls, value: Any) -> tuple[Objective, ...]:
        return parse_objectives(value)

    @field_validator("clients", mode="before")
    @classmethod
    def _clients(cls, value: Any) -> tuple[Client, ...]:
        return parse_clients(value)

    @field_validator("saved_views", mode="before")
    @classmethod
    def _saved_views(cls, value: Any) -> tuple[SavedView, ...]:
        return parse_saved_views(value)

    @property
    def all_objectives(self) -> tuple[Objective, ...]:
        """The objectives in the order of their priority, the default one last."""
        limits = round(self.slo_ttft * 1e9), round(self.slo_itl * 1e9), self.slo_error_rate
        return (*self.objectives, Objective(DEFAULT.name, "*", "*", "*", *limits))

    @field_validator("allowed_host", "dashboard_allowed_host", mode="before")
    @classmethod
    def _host_names(cls, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            raise ValueError("the value is not a list of host names such as ['gauge.example.com']")
        return tuple(map(parse_allowed_host, value))

    @field_validator(
        "retain_events", "retain_streams", "retain_rollups", "record_log_max_age", "tap_gone_after"
    )
    @classmethod
    def _durations(cls, value: str | None) -> str | None:
        parse_duration_s(value)
        return value

    @property
    def captured_routes(self) -> tuple[str, ...]:
        """Globs of the request paths whose content is captured."""
        if not self.capture_content:
            return ()
        return tuple(self.capture_routes.replace(",", " ").split()) if self.capture_routes else ("*",)

    @field_validator("capture_routes")
    @classmethod
    def _capture(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and info.data.get("capture_content") is False:
            raise ValueError("--capture-routes requires --capture-content")
        return value

    @field_validator("listen", "admin", "metrics", "otlp_listen")
    @classmethod
    def _addresses(cls, value: str, info: ValidationInfo) -> str:
        if value or info.field_name in ("listen", "admin"):
            split_address(value)
        return value

    @field_validator("kafka_topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        if not KAFKA_TOPIC.fullmatch(value):
            raise ValueError(
                f"{value!r} is not the name of a Kafka topic: use letters, digits, '.', '_' and '-'"
            )
        return value

    @field_validator("kafka")
    @classmethod
    def _brokers(cls, value: str | None) -> str | None:
        for broker in (value or "").split(",") if value else ():
            split_address(broker)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        if (folder := secrets_dir()) is not None:
            sources += (SecretsSettingsSource(settings_cls, secrets_dir=folder),)
        path = config_file()
        if path.is_file():
            sources += (TomlConfigSettingsSource(settings_cls, path),)
        return sources
