"""Base URLs of programs that `streamgauge run` starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamgauge.client_programs import VARIABLES, Routes
from streamgauge.ingest.tap.http.upstreams import PRESETS, parse_upstream, parse_upstreams

TAP = "http://127.0.0.1:5000"


def variables(tmp_path: Path, environment: dict[str, str], *given: str) -> dict[str, str]:
    call = Routes(parse_upstreams(given), environment).point(["prog"], TAP, tmp_path)
    return {name: call.environment[name].removeprefix(TAP) for name in VARIABLES}


def test_provider_is_the_default(tmp_path: Path) -> None:
    found = variables(tmp_path, {})
    assert found["OPENAI_BASE_URL"] == "/openai/v1"
    assert found["ANTHROPIC_BASE_URL"] == "/anthropic"
    assert {upstream.url for upstream in Routes((), {}).upstreams} == {
        f"{url}:443" for url in PRESETS.values()
    }


@pytest.mark.parametrize(
    "url", ["http://gw:4000/v1", "http://gw:4000/api", "http://gw:4000/api/v1/", "http://gw:4000"]
)
def test_base_url_in_the_environment_is_the_upstream(tmp_path: Path, url: str) -> None:
    routes = Routes((), {"OPENAI_BASE_URL": url})
    path = url.removeprefix("http://gw:4000").rstrip("/")
    assert variables(tmp_path, {"OPENAI_BASE_URL": url})["OPENAI_BASE_URL"] == f"/openai{path}"
    assert variables(tmp_path, {"OPENAI_BASE_URL": url})["ANTHROPIC_BASE_URL"] == "/anthropic"
    assert str(next(u for u in routes.upstreams if u.name == "openai")) == "openai=http://gw:4000"


def test_variable_that_is_no_url_is_named() -> None:
    with pytest.raises(ValueError, match=r"cannot use ANTHROPIC_BASE_URL: .*gw:4000"):
        Routes((), {"ANTHROPIC_BASE_URL": "gw:4000"})


@pytest.mark.parametrize("path", ["", "/v1", "/base/v1"])
def test_given_upstream_gets_the_requests_of_every_provider(tmp_path: Path, path: str) -> None:
    base = path.removesuffix("/v1")
    given = (f"gw=http://gw:4000{path}", "anthropic=http://other:1")
    found = variables(tmp_path, {"OPENAI_BASE_URL": "http://ignored"}, *given)
    assert found["OPENAI_BASE_URL"] == f"/gw{base}/v1"
    assert found["GOOGLE_GEMINI_BASE_URL"] == f"/gw{base}"
    assert found["ANTHROPIC_BASE_URL"] == "/anthropic"
    assert [str(u) for u in Routes(parse_upstreams(given), {}).upstreams] == [
        "anthropic=http://other:1", "gw=http://gw:4000",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("login", "environment", "path"),
    [
        (None, {}, "/openai/v1"),
        ({"OPENAI_API_KEY": "sk"}, {}, "/openai/v1"),
        ({"tokens": {"id_token": "t"}}, {}, "/chatgpt/backend-api/codex"),
        ({"tokens": {"id_token": "t"}}, {"OPENAI_API_KEY": "sk"}, "/openai/v1"),
    ],
)
def test_codex_gets_the_host_of_its_login(
    tmp_path: Path, login: object, environment: dict[str, str], path: str
) -> None:
    (tmp_path / "auth.json").write_text(json.dumps(login) if login else "not JSON")
    environment["CODEX_HOME"] = str(tmp_path)
    call = Routes((), environment).point(["/bin/codex", "exec", "hi"], TAP, tmp_path)
    assert call.argv == ["/bin/codex", "-c", f'openai_base_url="{TAP}{path}"', "exec", "hi"]


def test_opencode_keeps_its_own_configuration(tmp_path: Path) -> None:
    own = {"model": "x/y", "provider": {"openai": {"options": {"timeout": 5}}, "own": {"npm": "z"}}}
    call = Routes((), {"OPENCODE_CONFIG_CONTENT": json.dumps(own)}).point(["opencode"], TAP, tmp_path)
    found = json.loads(call.environment["OPENCODE_CONFIG_CONTENT"])
    assert found["provider"]["openai"]["options"] == {"timeout": 5, "baseURL": f"{TAP}/openai/v1"}
    assert found["provider"]["anthropic"]["options"] == {"baseURL": f"{TAP}/anthropic/v1"}
    assert (found["model"], found["provider"]["own"]) == ("x/y", {"npm": "z"})


@pytest.mark.parametrize(
    ("argv", "environment", "note"),
    [
        (["claude"], {"CLAUDE_CODE_USE_BEDROCK": "1"}, "Bedrock"),
        (["qwen"], {}, "OPENAI_API_KEY"),
        (["opencode"], {"OPENCODE_CONFIG_CONTENT": "{"}, "OPENCODE_CONFIG_CONTENT"),
    ],
)
def test_what_cannot_be_pointed_is_said(
    tmp_path: Path, argv: list[str], environment: dict[str, str], note: str
) -> None:
    [line] = Routes((), environment).point(argv, TAP, tmp_path).notes
    assert note in line


def test_gemini_without_a_login_gets_a_method_unless_the_user_has_settings(tmp_path: Path) -> None:
    name = "GEMINI_CLI_SYSTEM_DEFAULTS_PATH"
    call = Routes((), {"GEMINI_API_KEY": "k"}).point(["gemini"], TAP, tmp_path)
    defaults = json.loads(Path(call.environment[name]).read_text())
    assert defaults["security"]["auth"]["selectedType"] == "gemini-api-key"
    assert name not in Routes((), {}).point(["gemini"], TAP, tmp_path).environment
    own = Routes((), {"GEMINI_API_KEY": "k", name: "own"}).point(["gemini"], TAP, tmp_path)
    assert own.environment[name] == "own"


def test_proxy_of_the_environment_does_not_get_the_requests(tmp_path: Path) -> None:
    call = Routes((), {"NO_PROXY": "a.example"}).point(["prog"], TAP, tmp_path)
    assert call.environment["NO_PROXY"] == "a.example,127.0.0.1,localhost"


@pytest.mark.parametrize("name", PRESETS)
def test_name_of_a_provider_is_an_upstream(name: str) -> None:
    found = parse_upstream(name)
    assert (found.name, found.base_path, found.is_public) == (name, "", True)
