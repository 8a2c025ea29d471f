"""How programs come to send their model requests to the tap instead of a provider: the base URLs of `streamgauge run`.

A base URL is that of the provider with another host: `https://api.openai.com/v1` becomes `http://127.0.0.1:PORT/openai/v1`. Programs
with the SDK of a provider read it from a variable. `PROGRAMS` has those that need more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from streamgauge.ingest.http1.upstreams import PRESETS, Upstream, parse_upstream
from streamgauge.ingest.private_files import write_private

VARIABLES = {
    "OPENAI_BASE_URL": ("openai", "/v1"),
    "OPENAI_API_BASE": ("openai", "/v1"),
    "ANTHROPIC_BASE_URL": ("anthropic", ""),
    "ANTHROPIC_API_BASE": ("anthropic", ""),
    "GOOGLE_GEMINI_BASE_URL": ("gemini", ""),
    "CODE_ASSIST_ENDPOINT": ("codeassist", ""),
}
"""Variable with a base URL → provider in `PRESETS` and path of the base URL. OpenAI's second one is read by aider and LiteLLM, as
Anthropic's."""
_OPENCODE = {
    "openai": ("openai", "/v1"),
    "anthropic": ("anthropic", "/v1"),
    "google": ("gemini", "/v1beta"),
    "openrouter": ("openrouter", "/api/v1"),
    "groq": ("groq", "/openai/v1"),
    "mistral": ("mistral", "/v1"),
    "deepseek": ("deepseek", ""),
    "xai": ("xai", "/v1"),
}
"""opencode's name of a provider → as `VARIABLES`."""
_PI = _OPENCODE | {
    "anthropic": ("anthropic", ""),
    "mistral": ("mistral", ""),
    "openai-codex": ("chatgpt", "/backend-api"),
}
"""pi's name of a provider → as `VARIABLES`."""
_PI_COMMANDS = ("install", "remove", "uninstall", "update", "list", "config")
BaseUrl = Callable[[str, str], str]
"""Base URL at the tap of a provider and a path."""


@dataclass
class Call:
    """A command, its environment, and lines about what cannot be pointed at the tap."""

    argv: list[str]
    environment: dict[str, str]
    folder: Path
    """For files that the command reads."""
    notes: list[str] = field(default_factory=list)


@dataclass
class Routes:
    """Where the requests of a program go. Raises ValueError for a variable that is no URL.

    `given`: the upstream of a provider's name gets its requests, and the first one those of other providers. Without any, a
    provider's requests go to the URL in the environment of the program, else to the provider.
    """

    given: Sequence[Upstream]
    environment: Mapping[str, str]
    providers: dict[str, Upstream] = field(default_factory=dict)
    """Provider → upstream, whose path comes before that of the provider."""
    paths: dict[str, str] = field(default_factory=dict)
    """Variable → path of its URL in the environment, if that is used."""

    def __post_init__(self) -> None:
        named = {upstream.name: upstream for upstream in self.given}
        for name in PRESETS:
            chosen = named.get(name) or (self.given[0] if self.given else parse_upstream(name))
            self.providers[name] = replace(chosen, base_path=chosen.base_path.removesuffix("/v1"))
        for variable, (name, path) in VARIABLES.items() if not self.given else ():
            if url := self.environment.get(variable):
                try:
                    found = parse_upstream(f"{name}={url}")
                except ValueError as e:
                    raise ValueError(f"cannot use {variable}: {e}") from None
                self.paths[variable] = found.base_path
                self.providers[name] = replace(found, base_path=found.base_path.removesuffix(path))

    @property
    def upstreams(self) -> list[Upstream]:
        """Those of the tap. Without paths, which the base URLs have."""
        found = {upstream.name: replace(upstream, base_path="") for upstream in self.providers.values()}
        return list(found.values())

    def point(self, argv: Sequence[str], tap: str, folder: Path) -> Call:
        """The call whose requests go to the tap with this URL. `folder` gets files that the command reads. Raises OSError."""

        def base(provider: str, path: str) -> str:
            upstream = self.providers[provider]
            return f"{tap}/{upstream.name}{upstream.base_path}{path}"

        call = Call(list(argv), dict(self.environment), folder)
        for variable, (provider, path) in VARIABLES.items():
            upstream = self.providers[provider]
            call.environment[variable] = f"{tap}/{upstream.name}" + self.paths.get(
                variable, upstream.base_path + path
            )
        # A proxy for the way out must not get the requests to the tap.
        for variable in ("NO_PROXY", "no_proxy"):
            hosts = (self.environment.get(variable), "127.0.0.1,localhost")
            call.environment[variable] = ",".join(filter(None, hosts))
        if (known := PROGRAMS.get(Path(argv[0]).name)) is not None:
            known(call, base)
        return call


def _claude(call: Call, base: BaseUrl) -> None:
    for cloud in ("BEDROCK", "VERTEX"):
        if call.environment.get(f"CLAUDE_CODE_USE_{cloud}", "0") not in ("", "0", "false"):
            call.notes.append(f"Claude Code uses {cloud.title()}, whose requests do not pass through the tap")


def _codex(call: Call, base: BaseUrl) -> None:
    """It ignores OPENAI_BASE_URL. With a login at ChatGPT its requests belong to another host."""
    home = Path(call.environment.get("CODEX_HOME") or Path(call.environment.get("HOME", "/")) / ".codex")
    try:
        login = json.loads((home / "auth.json").read_bytes())
    except (OSError, ValueError):
        login = {}
    by_key = call.environment.get("OPENAI_API_KEY") or not login.get("tokens")
    url = base("openai", "/v1") if by_key else base("chatgpt", "/backend-api/codex")
    call.argv[1:1] = ["-c", f"openai_base_url={json.dumps(url)}"]


def _gemini(call: Call, base: BaseUrl) -> None:
    """It refuses the variable with the base URL unless its settings select the use of a key.

    It trusts settings of a system only in folders of root. So it gets a home folder: the settings of the user with that selection, and
    links to the user's other files.
    """
    variable = "GEMINI_CLI_HOME"
    if not call.environment.get("GEMINI_API_KEY"):
        return
    of_user = Path(call.environment.get(variable) or call.environment.get("HOME", "/")) / ".gemini"
    path = of_user / "settings.json"
    text = path.read_text() if path.exists() else "{}"
    if '"selectedType"' in text:
        return
    try:
        settings = json.loads(text)
        settings.setdefault("security", {}).setdefault("auth", {})["selectedType"] = "gemini-api-key"
    except (ValueError, AttributeError, TypeError):
        call.notes.append(
            f'Gemini CLI needs the setting security.auth.selectedType = "gemini-api-key" in {path}'
        )
        return
    own = call.folder / "gemini-home" / ".gemini"
    own.mkdir(parents=True, exist_ok=True)
    for entry in of_user.iterdir() if of_user.is_dir() else ():
        if entry != path and not os.path.lexists(own / entry.name):
            (own / entry.name).symlink_to(entry)
    write_private(own / path.name, json.dumps(settings).encode())
    call.environment[variable] = str(own.parent)


def _opencode(call: Call, base: BaseUrl) -> None:
    try:
        config = json.loads(call.environment.get("OPENCODE_CONFIG_CONTENT") or "{}")
    except ValueError:
        call.notes.append("OPENCODE_CONFIG_CONTENT is not JSON, and was replaced")
        config = {}
    for name, (provider, path) in _OPENCODE.items():
        options = config.setdefault("provider", {}).setdefault(name, {}).setdefault("options", {})
        options["baseURL"] = base(provider, path)
    call.environment["OPENCODE_CONFIG_CONTENT"] = json.dumps(config)


def _qwen(call: Call, base: BaseUrl) -> None:
    if call.environment.get("OPENAI_API_KEY"):
        if "--auth-type" not in call.argv:
            call.argv[1:1] = ["--auth-type", "openai"]
    else:
        call.notes.append("a login at Qwen cannot be pointed at the tap: set OPENAI_API_KEY")


def _pi(call: Call, base: BaseUrl) -> None:
    """Base URLs come from an extension. Its commands that manage packages take none."""
    if call.argv[1:2] and call.argv[1] in _PI_COMMANDS:
        return
    lines = [
        f"pi.registerProvider({json.dumps(name)}, {{ baseUrl: {json.dumps(base(provider, path))} }});"
        for name, (provider, path) in _PI.items()
    ]
    file = call.folder / "pi-base-urls.js"
    write_private(file, "\n".join(["export default (pi) => {", *lines, "};\n"]).encode())
    call.argv[1:1] = ["-e", str(file)]


PROGRAMS: dict[str, Callable[[Call, BaseUrl], None]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
    "pi": _pi,
    "qwen": _qwen,
}
"""Name of a program → what it needs besides the variables. aider and llm need nothing."""
