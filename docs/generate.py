"""Write the reference pages that are generated from code: `python docs/generate.py`, or `make reference`.

`pages()` returns the text of each page by its path. `tests/test_docs.py` compares it with the files.
"""

from __future__ import annotations

import asyncio
import csv
import importlib
import inspect
import json
import re
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click
import duckdb
import msgspec

import streamgauge
from streamgauge.analytics import dialects
from streamgauge.analytics.decoding import request_body
from streamgauge.analytics.dialects import kept, vendors
from streamgauge.analytics.measures.cache_misses import RULES
from streamgauge.analytics.schema import strict_clients
from streamgauge.analytics.schema.ddl import comments, statements
from streamgauge.analytics.schema.server_timing_names import SERVER_TIMING_NAMES
from streamgauge.analytics.schema.stream_columns import STREAM_COLUMNS, field_texts
from streamgauge.analytics.schema.tables import OPEN_STREAMS_SQL
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.telemetry.metric_definitions import metric_definitions
from streamgauge.analytics.telemetry.prometheus import prometheus_name
from streamgauge.analytics.telemetry.semconv import PROFILES
from streamgauge.cli import COMMAND_ORDER, cli
from streamgauge.commands.config import reference_text
from streamgauge.dashboard.sql_statements import RECIPES
from streamgauge.ingest import metrics as tap_metrics
from streamgauge.ingest.records import Cause
from streamgauge.ingest.redaction.json_keys import KEYS
from streamgauge.ingest.tap.exchanges import states
from streamgauge.mcp_server.server import TEXTS, new_server
from streamgauge.mcp_server.tools import Tools
from streamgauge.python_api.recorded_response import Response
from streamgauge.python_api.stream_measures import Measures
from streamgauge.settings.flags import flag
from streamgauge.settings.model import REMOVED, RENAMED, Settings, variable

DOCS = Path(__file__).resolve().parent
REFERENCE = DOCS / "reference"
DATA = DOCS / "data"
MAN = DOCS.parent / "deploy" / "man"
CAUSES = get_args(Cause)
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 1}
EXIT_CODES = (
    "0 = done; 1 = `status` or `alerts` found a problem; 2 = wrong use, or the command failed with one line on stderr; "
    "130 = interrupted. A part that an error stops exits with 1."
)
UNKNOWN_SYSTEM = "| anything else |  | `unknown` |  | none | end of connection |"
GENERATED = "This page is generated from the code by `make reference`."


def pages() -> dict[Path, str]:
    """The generated pages."""
    return {
        KEYS: _redaction_keys(),
        REFERENCE / "cli.md": _cli(),
        REFERENCE / "dialects.md": _with_sections(
            REFERENCE / "dialects.md", systems=_systems(), providers=_providers(), timing=_server_timing()
        ),
        REFERENCE / "strict-clients.md": _with_sections(
            REFERENCE / "strict-clients.md", rules=_client_rules()
        ),
        DOCS / "how-to" / "query.md": _with_recipes(DOCS / "how-to" / "query.md"),
        DOCS / "how-to" / "upgrade.md": _with_sections(DOCS / "how-to" / "upgrade.md", renamed=_renamed()),
        REFERENCE / "limits.md": _with_sections(REFERENCE / "limits.md", limits=_limits()),
        DOCS / "explanation" / "architecture.md": _with_sections(
            DOCS / "explanation" / "architecture.md", layers=_layers(), states=_states()
        ),
        DOCS / "explanation" / "measurement.md": _with_sections(
            DOCS / "explanation" / "measurement.md", cache_rules=_cache_rules()
        ),
        REFERENCE / "configuration.md": reference_text(),
        REFERENCE / "tables.md": _tables(),
        REFERENCE / "metrics.md": _metrics(),
        REFERENCE / "mcp.md": _mcp(),
        REFERENCE / "python.md": _python(),
        **{MAN / f"{name}.1": text for name, text in _man_pages()},
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").strip() for cell in line) + " |" for line in lines]


def _with_sections(page: Path, **sections: Sequence[str]) -> str:
    """The page with new contents of its generated sections."""
    text = page.read_text()
    for name, lines in sections.items():
        before, begin, rest = text.partition(f"<!-- generated: {name} -->")
        _, end, after = rest.partition("<!-- end -->")
        text = "\n".join([before + begin, "", *lines, "", end + after])
    return text


def _with_recipes(page: Path) -> str:
    """The page with the recipes of the SQL page that it names."""
    recipes = {recipe.name: recipe.sql for recipe in RECIPES}
    return re.sub(
        r"```sql\n-- name: (\w+)\n.*?```",
        lambda found: f"```sql\n-- name: {found[1]}\n{recipes[found[1]]}\n```",
        page.read_text(),
        flags=re.DOTALL,
    )


def _systems() -> list[str]:
    """The rows below `Systems:` in the docstrings of the dialects, those of the dialect with the most systems first."""
    rows = [
        re.findall(r"^\|.*(?:\n +.*)*", module.__doc__ or "", re.M) for module in dialects.dialect_modules()
    ]
    rows.sort(key=len, reverse=True)
    found = [" ".join(row.split()) for of in (*rows, [UNKNOWN_SYSTEM]) for row in of]
    return [*_table(("system", "provider", "dialect", "endpoints", "usage", "end"), ()), *found]


def _redaction_keys() -> str:
    """The allow-list of redaction, from the members that the dialects and the reader of requests declare."""
    groups = {
        "response": kept.key_groups(dialects.dialect_modules()),
        "request": kept.key_groups((request_body.REQUEST, request_body.NESTED)),
    }
    return json.dumps(groups, indent=1) + "\n"


def _client_rules() -> list[str]:
    """A table of the rules for each dialect."""
    lines: list[str] = []
    for dialect in (strict_clients.CHAT, strict_clients.MESSAGES, strict_clients.RESPONSES):
        rules = [rule for rule in strict_clients.RULES.values() if dialect in rule.clients]
        rows = [
            (f"`{r.code}`", r.meaning, ", ".join(strict_clients.CLIENTS[c] for c in r.clients[dialect])) for r in rules
        ]  # fmt: skip
        lines += [f"## {dialect}", "", *_table(("rule", "what the stream does", "breaks"), rows), ""]
    return lines[:-1]


def _providers() -> list[str]:
    by = (
        ("host", set(vendors.HOSTS.values())),
        ("response header", set(vendors.HEADERS.values()) | set(vendors.SERVERS.values())),
        ("path", set(vendors.PATHS.values())),
        ("field", set(vendors.MEMBERS.values()) | {"ollama", "openrouter"}),
    )
    return _table(
        ("identified by", "providers"),
        [(how, ", ".join(f"`{name}`" for name in sorted(names))) for how, names in by],
    )


def _server_timing() -> list[str]:
    rows = [
        (f"`{source}`", ", ".join(f"`{name}` → `{column}`" for name, column in names.items()))
        for source, names in SERVER_TIMING_NAMES.items()
    ]
    return _table(("source", "name → column of `server_timing`"), rows)


def _cache_rules() -> list[str]:
    rows = [
        (
            "any" if rule.provider == "*" else f"`{rule.provider}`",
            " ".join(f"`{glob}`" for glob in rule.models.split()),
            f"{rule.least_tokens:,}",
            "unknown" if rule.lifetime_s is None else f"{rule.lifetime_s // 60:,} min",
            f"[documentation]({rule.source})",
        )
        for rule in RULES[:-1]
    ]
    return _table(("provider", "models", "minimum tokens", "lifetime", "source"), rows)


def _limits() -> list[str]:
    """A table for each section. A limit `{name:unit}` in the data is the value of that name in the code."""
    rows = list(csv.DictReader((DATA / "limits.csv").open()))
    lines = []
    for section in dict.fromkeys(row["section"] for row in rows):
        cells = [
            (row["what"], re.sub(r"\{(.+?)\}", _limit, row["limit"]), row["when full"], row["counter"])
            for row in rows
            if row["section"] == section
        ]
        lines += [f"## {section}", "", *_table(("what", "limit", "when full", "counter"), cells), ""]
    return lines[:-1]


def _limit(match: re.Match[str]) -> str:
    name, _, unit = match[1].partition(":")
    value = value_of(name)
    number = value if isinstance(value, str) else f"{value // UNITS.get(unit, 1):,}"
    return f"{number}{' ' * bool(unit)}{unit} (`{name}`)"


def value_of(name: str) -> Any:
    """The value of a setting (`--flag`), a constant (`a.b.NAME`) or a default (`a.b.Class(argument)`) in the code."""
    if name.startswith("--"):
        return Settings.model_fields[name.removeprefix("--").replace("-", "_")].default
    name, _, argument = name.removesuffix(")").partition("(")
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    return inspect.signature(found).parameters[argument].default if argument else found


def _renamed() -> list[str]:
    rows = [
        [", ".join(f"`{form}`" for form in (flag(name), variable(name), name)) for name in names]
        for names in RENAMED.items()
    ]
    removed = [(f"`{flag(name)}`", reason) for name, reason in REMOVED.items()]
    return [*_table(("former", "now"), rows), "", *_table(("removed", "instead"), removed)]


def _layers() -> list[str]:
    """The import-linter contracts of pyproject.toml: a block for each package's layers, then the names of the others."""
    settings = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"].get("importlinter", {})
    lines, others = [], []
    for contract in settings.get("contracts", ()):
        if contract["type"] == "layers":
            title = ", ".join(contract.get("containers", [])) or "packages"
            if "exhaustive_ignores" in contract:  # one of several for these containers
                title = f"streamgauge.{contract['name']}"
            lines += [f"**{title}**", "", "```", *contract["layers"], "```", ""]
        else:
            others.append(f"- {contract['name']}.")
    return [*lines, "Further contracts:", "", *others]


def _states() -> list[str]:
    """The two tables of an exchange and that of a client connection, a line for each state."""
    request = _table(
        ("request", "next states", "ends with", "otherwise"),
        _state_rows(states.REQUEST, states.REQUEST_STATES),
    )
    limits = [", ".join(f"`{name}`" for name in names) or "–" for names in states.DEADLINES]
    rows = [
        (state, limit, *cells)
        for (state, *cells), limit in zip(
            _state_rows(states.RESPONSE, states.RESPONSE_STATES), limits, strict=True
        )
    ]
    head = ("response", "deadlines", "next states", "ends with", "otherwise")
    client = _table(
        ("client connection", "next states"),
        [row[:2] for row in _state_rows(states.CLIENT, states.CLIENT_STATES, states.CLIENT_EVENTS)],
    )
    return [*request, "", *_table(head, rows), "", *client]


def _state_rows(
    table: states.Table, names: Sequence[str], events: Sequence[str] = states.EVENTS
) -> list[tuple[str, ...]]:
    """State, transitions, causes of an end and other outcomes. Events that are ignored or impossible are left out."""
    rows = []
    for name, row in zip(names, table, strict=True):
        found: tuple[dict[str, list[str]], ...] = ({}, {}, {})  # events by result
        for event, cell in zip(events, row, strict=True):
            if cell in (states.IGNORED, states.IMPOSSIBLE):
                continue
            kind, result = (
                (0, names[cell])
                if isinstance(cell, int)
                else (1, f"`{cell}`")
                if cell in CAUSES
                else (2, cell)
            )
            found[kind].setdefault(result, []).append(event)
        cells = (
            "; ".join(f"{result}: {', '.join(events)}" for result, events in kind.items()) for kind in found
        )
        rows.append((name, *(cell or "–" for cell in cells)))
    return rows


def _cli() -> str:
    lines = [
        "# Command line",
        "",
        GENERATED
        + " `streamgauge COMMAND --help` prints the same. Flags that are settings can also be given in the",
        "environment or in a file: see [Configuration](configuration.md).",
        "",
        f"Exit codes: {EXIT_CODES} `NO_COLOR=1` turns colours off.",
        "",
        "The wheel installs a man page for each command, such as `man streamgauge-up`.",
        "",
        *_json_output(),
    ]
    context = click.Context(cli, info_name="streamgauge", **cli.context_settings)
    for name in COMMAND_ORDER:
        command = cli.get_command(context, name)
        assert command is not None
        lines += _command(command, f"streamgauge {name}", context)
    return "\n".join(lines)


def _json_output() -> list[str]:
    rows = []
    for row in csv.DictReader((DATA / "json_output.csv").open()):
        names, semicolon, note = row["keys"].partition(";")
        keys = (
            ", ".join(f"`{key}`" if key.isidentifier() else key for key in names.split(", "))
            + semicolon
            + note
        )
        rows.append((f"`{row['command']}`", row["output"], keys))
    return [
        "## JSON output",
        "",
        "Commands that report print JSON with `--format json`. Later versions may add keys. Times are in UTC.",
        "",
        *_table(("command", "prints", "keys"), rows),
        "",
    ]


def _command(command: click.Command, path: str, parent: click.Context, level: int = 2) -> Iterator[str]:
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"{'#' * level} {path}", "", f"`{path} {usage}`", "")
    for paragraph in (command.help or "").replace("\b\n", "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")
    for title, options in _groups(command):
        rows = [record for option in options if (record := option.get_help_record(context))]
        if rows:
            yield from ([f"**{title}**", ""] if title else [])
            yield from (
                *_table(("option", "meaning"), [(f"`{left}`", _text(right)) for left, right in rows]),
                "",
            )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _command(child, f"{path} {name}", context, level + 1)


def _groups(command: click.Command) -> list[tuple[str, Sequence[click.Parameter]]]:
    """The options of a command by group, help left out."""
    grouped = [(group.title, group.options) for group in getattr(command, "option_groups", ())]
    seen = {option.name for _, options in grouped for option in options} | {"help"}
    rest = [p for p in command.params if isinstance(p, click.Option) and p.name not in seen]
    return [*grouped, ("Other options" if grouped else "", rest)]


def _text(help_text: str) -> str:
    return re.sub(r"\s+", " ", help_text).replace(
        f"[default: {socket.gethostname()}]", "[default: the host's name]"
    )


def _man_pages() -> Iterator[tuple[str, str]]:
    """(name, text) of a man page for the group and for each command."""
    root = click.Context(cli, info_name="streamgauge", **cli.context_settings)
    yield "streamgauge", _man_page(cli, root)
    for name in COMMAND_ORDER:
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        yield f"streamgauge-{name}", _man_page(command, context)
        if isinstance(command, click.Group):
            for child_name in command.list_commands(context):
                child = command.get_command(context, child_name)
                assert child is not None
                inner = click.Context(child, info_name=child_name, parent=context)
                yield f"streamgauge-{name}-{child_name}", _man_page(child, inner)


def _man_page(command: click.Command, context: click.Context) -> str:
    path = context.command_path
    name = _roff(path.replace(" ", "-"))
    lines = [f'.TH "{name.upper()}" 1 "" "Streamgauge" "Streamgauge manual"']
    lines += [".SH NAME", rf"{name} \- {_roff(command.get_short_help_str(200).rstrip('.'))}"]
    lines += [
        ".SH SYNOPSIS",
        rf"\fB{_roff(path)}\fR {_roff(' '.join(command.collect_usage_pieces(context)))}",
    ]
    lines += [".SH DESCRIPTION"]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            lines += [".PP", ".nf", *map(_roff, paragraph.splitlines()[1:]), ".fi"]
        else:
            lines += [".PP", _roff(" ".join(paragraph.split()))]
    if isinstance(command, click.Group):
        children = [(child, command.get_command(context, child)) for child in command.list_commands(context)]
        lines += [".SH COMMANDS"]
        for child, found in children:
            assert found is not None
            lines += [".TP", rf"\fB{_roff(child)}\fR", _roff(found.get_short_help_str(200))]
    groups = [(title, [o.get_help_record(context) for o in options]) for title, options in _groups(command)]
    if any(record for _, records in groups for record in records):
        lines += [".SH OPTIONS"]
    for title, records in groups:
        lines += [f".SS {_roff(title)}"] if title and any(records) else []
        for left, right in filter(None, records):
            words = (rf"\f{'B' if word.startswith('-') else 'I'}{_roff(word)}\fR" for word in left.split())
            lines += [".TP", " ".join(words), _roff(_text(right))]
    lines += [".SH EXIT STATUS", _roff(EXIT_CODES.replace("`", ""))]
    if context.parent is None:
        lines += [".SH ENVIRONMENT"]
        lines += [".TP", r"\fBSTREAMGAUGE_*\fR", r"Settings, such as STREAMGAUGE_UPSTREAM for \-\-upstream."]
        lines += [".TP", r"\fBNO_COLOR\fR", "Turns colours off."]
        lines += [".SH FILES", ".TP", r"\fBstreamgauge.toml\fR", "Settings, in the working directory."]
    else:
        parents = _roff(context.parent.command_path.replace(" ", "-"))
        lines += [".SH SEE ALSO", rf"\fB{parents}\fR(1)"]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """The text of one line, escaped for roff and in ASCII, which every terminal shows."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _paragraphs(text: str) -> list[str]:
    return [part for line in text.splitlines() for part in (line, "")]


def _mcp() -> str:
    tools = Tools(locate(SQLITE, DOCS))
    lines = [
        "# MCP tools",
        "",
        f"The tools of `streamgauge mcp` ([how to use them](../how-to/use-from-agents.md)). {GENERATED}",
        "",
        *_paragraphs(TEXTS["instructions"]),
    ]
    for tool in asyncio.run(new_server(tools, "").list_tools()):
        rows = [
            (
                f"`{name}`",
                part["description"],
                "required" if "default" not in part else f"`{json.dumps(part['default'])}`",
            )
            for name, part in tool.input_schema["properties"].items()
        ]
        answer = ", ".join(f"`{name}`" for name in (tool.output_schema or {})["properties"])
        lines += [f"## {tool.name}", "", *_paragraphs(str(tool.description))]
        lines += [*_table(("argument", "meaning", "default"), rows), "", f"Answer: {answer}.", ""]
    return "\n".join(lines)


def _tables() -> str:
    lines = [
        "# Tables and views",
        "",
        GENERATED
        + " Any SQL client shows the same texts as comments. [Measurement](../explanation/measurement.md)",
        "defines the numbers, [Query with SQL](../how-to/query.md) has ready queries.",
        "",
        "Columns that end in `_ns` are nanoseconds after t0, the moment before the tap takes or opens a connection to the",
        "upstream. Columns that end in `_at` are instants. NULL means unknown.",
        "",
    ]
    con = duckdb.connect()
    for part in (*statements(), OPEN_STREAMS_SQL, comments(OPEN_STREAMS_SQL)):
        con.execute(part)
    relations = con.execute(
        "SELECT table_name, comment, false FROM duckdb_tables() WHERE schema_name = 'main' "
        "UNION ALL SELECT view_name, comment, true FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal"
    ).fetchall()
    for name, comment, is_view in sorted(
        relations, key=lambda r: (r[2], r[0] != "streams", r[0] != "events", r[0])
    ):
        columns = con.execute(
            "SELECT column_name, data_type, coalesce(comment, '') FROM duckdb_columns() "
            "WHERE schema_name = 'main' AND table_name = ? ORDER BY column_index",
            [name],
        ).fetchall()
        rows = [(f"`{column}`", kind, text) for column, kind, text in columns]
        with_text = any(text for *_, text in rows)
        head = ("column", "type", "meaning") if with_text else ("column", "type")
        lines += [f"## {name}", "", f"{'View. ' if is_view else ''}{comment or ''}".strip(), ""]
        lines += [*_table(head, [row[: len(head)] for row in rows]), ""]
    return "\n".join(lines)


PYTHON_SECTIONS = {
    "Connect": ("connect", "Connection"),
    "Decode and measure": ("read", "Response", "measure", "Measures", "Event"),
    "Errors": (
        "QueryError", "StoreUnavailable", "QueryRejected", "QueryTimeout", "UnreadableResponse", "UnmeasurableEvents",
    ),
}  # fmt: skip


def _python() -> str:
    """The Python API, from signatures and docstrings."""
    lines = [
        "# Python API",
        "",
        GENERATED + " [Use any SQL client](../how-to/sql-clients.md) has recipes,",
        "[Measurement](../explanation/measurement.md) defines the numbers.",
        "",
        "```python",
        "import streamgauge as sg",
        "```",
        "",
        "The import is fast, because each name is imported when it is used first. All names have types.",
        "",
    ]
    for title, names in PYTHON_SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            found = getattr(streamgauge, name)
            if inspect.isfunction(found):
                lines += [f"### {name}", "", *_signature(found, f"sg.{name}"), *_docstring(found)]
            elif issubclass(found, Exception):
                lines += [
                    f"### {name}",
                    "",
                    f"Subclass of `{found.__base__.__name__}`.",
                    "",
                    *_docstring(found),
                ]
            elif issubclass(found, msgspec.Struct):
                lines += [f"### {name}", "", *_docstring(found), *_fields(found)]
            else:
                lines += [f"### {name}", "", *_docstring(found), *_members(found)]
    return "\n".join(lines)


def _signature(function: Callable[..., Any], name: str) -> list[str]:
    text = f"{name}{inspect.signature(function)}".replace("'", "")  # annotations are strings
    text = text.replace("(self, ", "(").replace("(self)", "()")
    return ["```python", text, "```", ""]


def _docstring(documented: object) -> list[str]:
    """The docstring as Markdown: examples are code blocks."""
    lines = []
    for paragraph in (inspect.getdoc(documented) or "").split("\n\n"):
        is_example = paragraph.startswith(">>> ")
        lines += ["```python", paragraph, "```", ""] if is_example else [paragraph, ""]
    return lines


def _fields(struct: type[msgspec.Struct]) -> list[str]:
    """A table of the fields, with the docstring below each."""
    kinds, columns = struct.__annotations__, STREAM_COLUMNS if struct in (Measures, Response) else {}
    rows = []
    for name, text in field_texts(struct).items():
        meaning = text or (columns[name].text.replace("NULL", "None") if name in columns else "")
        rows.append((f"`{name}`", f"`{kinds[name]}`", " ".join(meaning.split())))
    return [*_table(("field", "type", "meaning"), rows), ""]


def _members(cls: type) -> list[str]:
    """The public methods and properties of a class, in their order."""
    lines = []
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            assert member.fget is not None
            kind = inspect.signature(member.fget).return_annotation
            lines += [f"**{name}**: `{kind}`", "", *_docstring(member)]
        else:
            lines += _signature(member, name) + _docstring(member)
    return lines


def _metrics() -> str:
    return "\n".join(
        [
            "# Metrics",
            "",
            GENERATED + " [Traces and metrics](telemetry.md) describes attributes, profiles and export.",
            "",
            "## Analytics",
            "",
            "At `--metrics` (default `127.0.0.1:4102/metrics`) and over OTLP. *Profile* is the version of the conventions with which the",
            "metric exists.",
            "",
            *_table(("metric", "profile", "kind", "unit", "in Prometheus", "meaning"), _analytics_rows()),
            "",
            "## Tap",
            "",
            "At `--admin` (default `127.0.0.1:4101/metrics`). All workers are added up.",
            "",
            *_table(("metric", "kind", "meaning"), _tap_rows()),
            "",
        ]
    )


def _analytics_rows() -> list[tuple[str, ...]]:
    endings = {"counter": "_total", "total": "_total"}
    known = {profile: metric_definitions(names) for profile, names in PROFILES.items()}
    rows = []
    for profile, instruments in known.items():
        for i in instruments:
            in_all = all(any(o.name == i.name for o in other) for other in known.values())
            if in_all and profile != "1.41":
                continue
            kind = "counter" if i.kind == "total" else i.kind
            name = prometheus_name(i.name, i.unit) + endings.get(i.kind, "")
            rows.append(
                (f"`{i.name}`", "both" if in_all else profile, kind, i.unit, f"`{name}`", i.description)
            )
    return rows


def _tap_rows() -> list[tuple[str, str, str]]:
    rendered = tap_metrics.render(tap_metrics.Report(_EveryCounter(), {}, {}))
    kinds: Mapping[str, str] = dict(re.findall(r"^# TYPE (\S+) (\S+)$", rendered, re.M))
    return [
        (f"`{name}`", kinds[name], text) for name, text in re.findall(r"^# HELP (\S+) (.+)$", rendered, re.M)
    ]


class _EveryCounter(dict[str, int]):
    """Counters of a tap that has all of them, each 0."""

    def __init__(self) -> None:
        super().__init__(closed_CAUSE=0)

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> int:
        return 0


def main() -> int:
    MAN.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
