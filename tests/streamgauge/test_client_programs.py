"""Base URLs of programs that `streamgauge run` starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamgauge.commands.client_programs import VARIABLES, Call, Routes
from streamgauge.ingest.http1.upstreams import PRESETS, parse_upstream, parse_upstreams

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


def gemini(folder: Path, **environment: str) -> Call:
    return Routes((), {"HOME": str(folder / "home"), **environment}).point(["gemini"], TAP, folder)


def test_gemini_with_a_key_gets_its_selection_and_keeps_the_files_of_the_user(tmp_path: Path) -> None:
    users = tmp_path / "home" / ".gemini"
    users.mkdir(parents=True)
    (users / "GEMINI.md").write_text("memory")
    (users / "settings.json").write_text(
        '{"ui": {"theme": "Dracula"}, "security": {"auth": {"useExternal": false}}}'
    )
    for _ in range(2):  # a data folder can have several runs
        call = gemini(tmp_path, GEMINI_API_KEY="k")
    own = Path(call.environment["GEMINI_CLI_HOME"]) / ".gemini"
    auth = {"useExternal": False, "selectedType": "gemini-api-key"}
    assert json.loads((own / "settings.json").read_text()) == {
        "ui": {"theme": "Dracula"},
        "security": {"auth": auth},
    }
    (own / "GEMINI.md").write_text("more")
    assert (users / "GEMINI.md").read_text() == "more"
    assert "selectedType" not in (users / "settings.json").read_text()


def test_gemini_without_files_of_the_user_gets_its_selection(tmp_path: Path) -> None:
    own = Path(gemini(tmp_path, GEMINI_API_KEY="k").environment["GEMINI_CLI_HOME"]) / ".gemini"
    assert "gemini-api-key" in (own / "settings.json").read_text()


@pytest.mark.parametrize(
    "settings", [None, '{"security": {"auth": {"selectedType": "oauth-personal"}}}', "{// comment\n}"]
)
def test_gemini_keeps_a_login_and_settings_that_are_not_json(tmp_path: Path, settings: str | None) -> None:
    key = {}
    if settings is not None:
        key = {"GEMINI_API_KEY": "k"}
        (tmp_path / "home" / ".gemini").mkdir(parents=True)
        (tmp_path / "home" / ".gemini" / "settings.json").write_text(settings)
    call = gemini(tmp_path, **key)
    assert "GEMINI_CLI_HOME" not in call.environment
    assert ["selectedType" in note for note in call.notes] == (
        [True] if settings and "//" in settings else []
    )


def test_pi_gets_an_extension_with_the_base_urls(tmp_path: Path) -> None:
    call = Routes((), {}).point(["pi", "-p", "hi"], TAP, tmp_path)
    assert call.argv == ["pi", "-e", str(tmp_path / "pi-base-urls.js"), "-p", "hi"]
    text = (tmp_path / "pi-base-urls.js").read_text()
    assert (tmp_path / "pi-base-urls.js").stat().st_mode & 0o077 == 0
    assert f'pi.registerProvider("anthropic", {{ baseUrl: "{TAP}/anthropic" }});' in text
    assert f'pi.registerProvider("google", {{ baseUrl: "{TAP}/gemini/v1beta" }});' in text
    assert Routes((), {}).point(["pi", "install", "x"], TAP, tmp_path).argv == ["pi", "install", "x"]


def test_proxy_of_the_environment_does_not_get_the_requests(tmp_path: Path) -> None:
    call = Routes((), {"NO_PROXY": "a.example"}).point(["prog"], TAP, tmp_path)
    assert call.environment["NO_PROXY"] == "a.example,127.0.0.1,localhost"


@pytest.mark.parametrize("name", PRESETS)
def test_name_of_a_provider_is_an_upstream(name: str) -> None:
    found = parse_upstream(name)
    assert (found.name, found.base_path, found.is_public) == (name, "", True)
