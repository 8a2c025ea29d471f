"""Telemetry of coding agents: how `streamgauge run` lets Claude Code, Codex and Gemini CLI send theirs to the OTLP receiver.

It is switched on for one call, over HTTP, with the text of prompts off. An agent whose telemetry the user has set, on or off, in a
variable, a flag or a file, keeps that setting.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from streamgauge.commands.client_programs import Call

_OF_CLAUDE = (
    "CLAUDE_CODE_ENABLE_TELEMETRY", "OTEL_EXPORTER_", "OTEL_LOGS_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_SDK_DISABLED",
)  # fmt: skip
_OF_GEMINI = ("GEMINI_TELEMETRY_", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Starts of the names of variables with which a user sets the telemetry."""


def switch_on(call: Call, url: str) -> None:
    """Let the agent of a call send its telemetry to the receiver at `url`."""
    name = Path(call.argv[0]).name
    is_set, switch = AGENTS[name]
    if is_set(call):
        call.notes.append(f"the telemetry of {name} is set by you and stays so: no events of it are received")
    else:
        switch(call, url)


def _claude(call: Call, url: str) -> None:
    call.environment |= {"CLAUDE_CODE_ENABLE_TELEMETRY": "1", "OTEL_LOGS_EXPORT_INTERVAL": "1000"}
    for signal in ("LOGS", "METRICS"):
        call.environment |= {
            f"OTEL_{signal}_EXPORTER": "otlp",
            f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL": "http/protobuf",
            f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT": f"{url}/v1/{signal.lower()}",
        }


def _claude_is_set(call: Call) -> bool:
    home, managed = _home(call, "CLAUDE_CONFIG_DIR", ".claude"), Path("/etc/claude-code")
    if sys.platform == "darwin":
        managed = Path("/Library/Application Support/ClaudeCode")
    own = Path(".claude")
    files = [
        home / "settings.json",
        own / "settings.json",
        own / "settings.local.json",
        managed / "managed-settings.json",
    ]
    return any(
        name.startswith(_OF_CLAUDE)
        for variables in (call.environment, *(_table(file, "env") for file in files))
        for name in variables
    )


def _codex(call: Call, url: str) -> None:
    # Its metrics have no more, and its traces have a hundred spans for each tool.
    exporter = f'{{otlp-http={{endpoint={json.dumps(f"{url}/v1/logs")},protocol="binary"}}}}'
    call.argv[1:1] = ["-c", f"otel.exporter={exporter}", "-c", "otel.log_user_prompt=false"]


def _codex_is_set(call: Call) -> bool:
    folders = (_home(call, "CODEX_HOME", ".codex"), Path(".codex"), Path("/etc/codex"))
    return any(word.startswith("otel") for word in call.argv) or any(
        _table(folder / "config.toml", "otel") for folder in folders
    )


def _gemini(call: Call, url: str) -> None:
    call.environment |= {
        "GEMINI_TELEMETRY_ENABLED": "true",
        "GEMINI_TELEMETRY_TARGET": "local",
        "GEMINI_TELEMETRY_OTLP_ENDPOINT": url,
        "GEMINI_TELEMETRY_OTLP_PROTOCOL": "http",
        "GEMINI_TELEMETRY_LOG_PROMPTS": "false",
        "GEMINI_TELEMETRY_TRACES_ENABLED": "false",
    }


def _gemini_is_set(call: Call) -> bool:
    folders = (_home(call, "GEMINI_CLI_HOME", "") / ".gemini", Path(".gemini"), Path("/etc/gemini-cli"))
    return (
        any(name.startswith(_OF_GEMINI) for name in call.environment)
        or any(word.startswith(("--telemetry", "--no-telemetry")) for word in call.argv)
        or any(_table(folder / "settings.json", "telemetry") for folder in folders)
    )


def _home(call: Call, variable: str, folder: str) -> Path:
    return Path(call.environment.get(variable) or Path(call.environment.get("HOME", "/")) / folder)


def _table(file: Path, key: str) -> Iterable[str]:
    """The names in a table of a file of settings. A file that cannot be read has none."""
    try:
        text = file.read_text()
        found: Any = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
        return dict(found.get(key) or {})
    except (OSError, ValueError, AttributeError, TypeError):
        return ()


AGENTS: dict[str, tuple[Callable[[Call], bool], Callable[[Call, str], None]]] = {
    "claude": (_claude_is_set, _claude),
    "codex": (_codex_is_set, _codex),
    "gemini": (_gemini_is_set, _gemini),
}
"""Name of a program → whether its user has set the telemetry, and what switches it on."""
