"""All settings, once: flags, `STREAMGAUGE_*` environment and `streamgauge.toml` are made from this model.

Precedence: flags > environment > file > the defaults here. Every field's description is its `--help` text and its row in
docs/reference/configuration.md.
"""

from __future__ import annotations

import difflib
import os
import socket
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ingest.tap.options import split_address
from ingest.tap.upstreams import Upstream, parse_upstreams
from streamgauge.durations import parse_duration_s

CONFIG_FILE = "streamgauge.toml"


def config_file() -> Path:
    """The file that is read if it is there. Raises ValueError when one is named that is not."""
    named = os.environ.get("STREAMGAUGE_CONFIG")
    if named and not Path(named).exists():
        raise ValueError(f"STREAMGAUGE_CONFIG names {named}, which is not there")
    return Path(named or CONFIG_FILE)


def secrets_dir() -> Path | None:
    """The folder whose files are settings: STREAMGAUGE_SECRETS_DIR, else what systemd loaded as credentials.

    A file `streamgauge_client_key` is the setting `client_key`. Raises ValueError when the folder named is not there.
    """
    named = os.environ.get("STREAMGAUGE_SECRETS_DIR") or os.environ.get("CREDENTIALS_DIRECTORY")
    if named and not Path(named).is_dir():
        raise ValueError(f"STREAMGAUGE_SECRETS_DIR names {named}, which is not a folder")
    return Path(named) if named else None


def misspelt_environment() -> dict[str, str]:
    """Variables that look like a setting but are none, and the setting that each may mean.

    Only what is close to a setting: other programs' variables may begin like ours (Kubernetes makes some of a Service's name).
    """
    known = {f"STREAMGAUGE_{name.upper()}" for name in Settings.model_fields}
    named = [name for name in os.environ if name.startswith("STREAMGAUGE_") and name not in known]
    near = {name: difflib.get_close_matches(name, known, 1, 0.9) for name in named}
    return {name: found[0] for name, found in near.items() if found}


class Settings(BaseSettings):
    """What every command can be told. A command takes the fields that concern it."""

    model_config = SettingsConfigDict(env_prefix="STREAMGAUGE_", extra="forbid")

    upstream: Annotated[tuple[Upstream, ...], NoDecode] = Field(
        default=(),
        description="Gateway or inference server behind the tap: URL, or NAME=URL for several "
        "(chosen by the path prefix /NAME/ or the header x-streamgauge-upstream). Repeatable.",
    )
    listen: str = Field(default="127.0.0.1:4100", description="Address where the tap takes requests.")
    admin: str = Field(
        default="127.0.0.1:4101", description="Address of the tap's /healthz, /readyz and /metrics."
    )
    data: Path = Field(default=Path("streamgauge-data"), description="Data folder.")
    kafka: str | None = Field(
        default=None, description="HOST:PORT of a Kafka broker; without it the log stays on this machine."
    )
    kafka_topic: str = Field(default="streamgauge", description="Kafka topic of the log.")
    kafka_options: dict[str, Any] = Field(
        default_factory=dict,
        description="kafka-python client options as JSON (security_protocol, sasl_mechanism, ssl_cafile …).",
    )
    dashboard_port: int = Field(default=8501, ge=0, le=65535, description="Port of the dashboard.")
    dashboard_host: str = Field(default="127.0.0.1", description="Address that the dashboard listens on.")
    dashboard_token: SecretStr | None = Field(
        default=None,
        description="Token that the dashboard asks for when it listens beyond this machine; a random one is kept in "
        "the data folder when none is given.",
    )
    dashboard_oidc: Path | None = Field(
        default=None,
        description="TOML file of an OpenID Connect provider: readers of the dashboard sign in there, no token needed "
        "(docs/reference/dashboard.md).",
    )
    no_dashboard: bool = Field(default=False, description="Start no dashboard.")
    serve: bool = Field(default=False, description="Also start `serve`: read-only SQL over the network.")
    sql_port: int = Field(default=9494, ge=0, le=65535, description="Port of `serve`; 0 = any free port.")
    sql_host: str = Field(default="localhost", description="Host name or address that `serve` listens on.")
    sql_token: SecretStr | None = Field(
        default=None, description="Token of `serve`, at least 16 characters; by default a random one."
    )
    workers: int = Field(default=1, ge=1, le=256, description="Processes of the tap.")
    tap_name: str = Field(default_factory=socket.gethostname, description="Name of this tap, in every row.")
    store: str = Field(
        default="sqlite",
        repr=False,
        description="Catalog of the tables: sqlite (DATA/catalog.sqlite, rows in DATA/tables), or postgres:DSN, which several "
        "analytics share (may hold a password).",
    )
    lake_path: str | None = Field(
        default=None,
        description="With --store postgres:DSN: folder that all hosts reach, or s3://BUCKET/PREFIX, of the Parquet files.",
    )
    retain_events: str | None = Field(
        default="7d", description="Age at which rows of events go (7d, 36h, 90m; 'forever' keeps them)."
    )
    retain_streams: str | None = Field(default="90d", description="Age at which rows of streams go.")
    retain_rollups: str | None = Field(
        default="400d",
        description="Age at which the roll-ups by the minute go; never before the streams that they count.",
    )
    tap_gone_after: str | None = Field(
        default="24h",
        description="How long open streams wait for a tap that went silent without a word while other taps are heard, before "
        "they end as lost: as long as a host may be cut off from Kafka and still bring its streams.",
    )
    capture_content: bool = Field(
        default=False,
        description="Store generated text and error messages (streams.output_text, reasoning_text, error_message), and let "
        "`ship` send prompts and text to Kafka as they are.",
    )
    capture_routes: str | None = Field(
        default=None,
        description="With --capture-content: only of requests whose path fits one of these globs (/v1/chat/*, several "
        "by commas).",
    )
    metrics: str = Field(
        default="127.0.0.1:4102",
        description="Address where analytics answers Prometheus (/metrics); empty = nowhere.",
    )
    semconv: str = Field(
        default="1.41",
        pattern=r"^(1\.41|genai-main)$",
        description="GenAI semantic conventions that spans and metrics speak: 1.41 or genai-main.",
    )
    no_spans: bool = Field(default=False, description="Make no spans of streams.")
    no_otlp: bool = Field(
        default=False, description="Export nothing over OTLP, even where OTEL_EXPORTER_OTLP_ENDPOINT is set."
    )
    export_unsampled: bool = Field(
        default=False, description="Export also the spans of traces that their caller did not sample."
    )
    otlp_listen: str = Field(
        default="",
        description="Address where analytics takes spans of clients and gateways over OTLP/HTTP (/v1/traces), such as "
        "127.0.0.1:4318; empty = nowhere.",
    )
    otlp_token: SecretStr | None = Field(
        default=None,
        description="Bearer token that senders of spans must give; beyond this machine --otlp-listen needs one.",
    )
    client_key: SecretStr | None = Field(
        default=None,
        description="Key of the hash that makes client_id from API keys; a random one is kept in the data folder "
        "when none is given.",
    )
    record_log_max_bytes: int = Field(
        default=2 * 2**30,
        ge=2**20,
        description="Cap on the bytes of the tap's local log, all workers together.",
    )
    record_log_max_age: str | None = Field(
        default="7d",
        description="Age at which what nothing has read goes from the tap's local log (7d, 36h; 'forever' keeps it "
        "up to --record-log-max-bytes); it is told as lost.",
    )
    tap_queue: int = Field(
        default=64 * 2**20,
        ge=2**16,
        description="Cap on bytes that wait in memory for the log, per tap worker.",
    )
    connect_timeout: float = Field(
        default=30.0, ge=0, description="Seconds to connect to the upstream; 0 = no limit."
    )
    headers_timeout: float = Field(
        default=0.0, ge=0, description="Seconds of silence before the response's first byte; 0 = no limit."
    )
    idle_timeout: float = Field(
        default=0.0, ge=0, description="Seconds of silence in mid-stream; 0 = no limit."
    )
    idle_output_timeout: float = Field(
        default=0.0,
        ge=0,
        description="As --idle-timeout, but comments (heartbeats) do not count as life; 0 = no limit.",
    )
    max_request_bytes: int = Field(
        default=0, ge=0, description="A larger request body is answered 413; 0 = no limit."
    )
    drain_timeout: float = Field(
        default=20.0,
        ge=0,
        description="Seconds that open streams may go on after SIGTERM; then they are ended.",
    )
    upstream_ca: Path | None = Field(
        default=None, description="PEM file of the CAs to trust for https upstreams, instead of the system's."
    )
    upstream_cert: Path | None = Field(
        default=None, description="PEM file of the client certificate (and key) shown to https upstreams."
    )
    upstream_key: Path | None = Field(
        default=None, description="PEM file of that certificate's key, when apart."
    )
    tls_cert: Path | None = Field(
        default=None, description="PEM file of the certificate shown to clients: the tap then speaks https."
    )
    tls_key: Path | None = Field(default=None, description="PEM file of that certificate's key.")
    no_x_forwarded: bool = Field(default=False, description="Send no X-Forwarded-* headers upstream.")
    via: bool = Field(default=False, description="Send a Via header upstream.")
    forwarded: bool = Field(
        default=False,
        description="Send a Forwarded header (RFC 7239) upstream, which says what X-Forwarded-* do.",
    )
    preserve_host: bool = Field(
        default=False,
        description="Send the client's Host header upstream instead of the upstream's own name.",
    )
    stall_floor: float = Field(default=0.5, gt=0, description="Seconds: no gap below this is a stall.")
    stall_factor: float = Field(
        default=5.0, gt=0, description="A stall is a gap above this many median gaps."
    )
    slo_ttft: float = Field(default=2.0, gt=0, description="SLO for goodput: time to first token, seconds.")
    slo_itl: float = Field(default=0.1, gt=0, description="SLO for goodput: inter-token latency, seconds.")
    slo_error_rate: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Objective of the dashboard's verdict: the share of streams that may fail.",
    )
    log_format: str = Field(
        default="text", pattern="^(text|json)$", description="Log lines on stderr: text or json."
    )

    @model_validator(mode="after")
    def _store(self) -> Self:
        from analytics.storage.location import locate

        locate(self.store, self.data, self.lake_path)
        return self

    @field_validator("upstream", mode="before")
    @classmethod
    def _upstreams(cls, value: Any) -> tuple[Upstream, ...]:
        if isinstance(value, str):
            value = [part for part in value.replace(",", " ").split() if part]
        return parse_upstreams(value)

    @field_validator(
        "retain_events", "retain_streams", "retain_rollups", "record_log_max_age", "tap_gone_after"
    )
    @classmethod
    def _ages(cls, value: str | None) -> str | None:
        parse_duration_s(value)
        return value

    @property
    def capture(self) -> tuple[str, ...]:
        """Globs of the paths whose text is kept; none by default."""
        if not self.capture_content:
            return ()
        return tuple(self.capture_routes.replace(",", " ").split()) if self.capture_routes else ("*",)

    @model_validator(mode="after")
    def _capture(self) -> Self:
        if self.capture_routes and not self.capture_content:
            raise ValueError("--capture-routes says where, --capture-content whether: give both")
        return self

    @field_validator("listen", "admin")
    @classmethod
    def _addresses(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("metrics", "otlp_listen")
    @classmethod
    def _addresses_or_none(cls, value: str) -> str:
        if value:
            split_address(value)
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
