"""The states that a run of the whole suite must reach: one that misses some fails. A run of a part of the suite checks nothing.

They follow from tables and counters of the product: each transition of an exchange, and counters of the tap, the record log and the
capture. Counters are read when their owner ends, in the processes of the tests. Tests note the other states.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

RESUMED_UPGRADE = "an interrupted upgrade was resumed"
_OWNERS: Sequence[tuple[str, str, str, Callable[[Any], Mapping[str, int]]]] = (
    ("ingest.recording.recording", "Recording", "close", lambda recording: recording.stats()),
    ("ingest.record_log.embedded_writer", "EmbeddedWriter", "close", lambda writer: writer.stats()),
    (
        "ingest.record_log.embedded_reader",
        "EmbeddedReader",
        "close",
        lambda reader: {"trimmed_segments": reader.trimmed_segments},
    ),
    ("ingest.capture.tcp_connections", "Connections", "stop", lambda connections: connections.counters),
)
"""Module, class, its last method, and its counters."""
_COUNTED = {
    "Recording.lost_records",  # a full queue
    "EmbeddedWriter.dropped_segments",
    "EmbeddedReader.trimmed_segments",
    "Connections.connections_evicted",
}
"""Counters that a test must raise."""
_reached: set[str] = set()


def note(states: Iterable[str]) -> None:
    """Note that a test has reached these states."""
    _reached.update(states)


def waits(waited_for: Iterable[str]) -> list[str]:
    """An exchange has waited for its client, which pauses, or for the tap."""
    return [f"wait for the {who}" for who in waited_for]


def transitions(request: int, response: int, event: int) -> list[str]:
    """What the tables of an exchange say about an event in a pair of states, if it is possible and not ignored."""
    from streamgauge.ingest.tap.exchanges import states

    found = list[str]()
    for of, table, names, state in (
        ("request", states.REQUEST, states.REQUEST_STATES, request),
        ("response", states.RESPONSE, states.RESPONSE_STATES, response),
    ):
        cell = table[state][event]
        if cell not in (states.IGNORED, states.IMPOSSIBLE):
            to = names[cell] if isinstance(cell, int) else cell
            found.append(f"{of} {names[state]}: {states.EVENTS[event]} → {to}")
    return found


def missing() -> list[str]:
    """States that the tests have not reached."""
    from streamgauge.ingest.tap.exchanges import states

    must = {RESUMED_UPGRADE, *waits(["client"]), *_COUNTED}
    for request in range(len(states.REQUEST)):
        for response in range(len(states.RESPONSE)):
            for event in range(len(states.EVENTS)):
                must.update(transitions(request, response, event))
    return sorted(must - _reached)


def _read_counters() -> None:
    for module, name, method, counters in _OWNERS:
        owner = getattr(importlib.import_module(f"streamgauge.{module}"), name)
        setattr(owner, method, _with_counters(getattr(owner, method), name, counters))


def _with_counters(last: Any, name: str, counters: Callable[[Any], Mapping[str, int]]) -> Any:
    """The last method of an owner, which also notes its counters."""

    def note_counters(owner: Any) -> None:
        _reached.update(f"{name}.{counter}" for counter, value in counters(owner).items() if value)

    if inspect.iscoroutinefunction(last):

        @functools.wraps(last)
        async def ends(owner: Any, *given: Any, **named: Any) -> Any:
            try:
                return await last(owner, *given, **named)
            finally:
                note_counters(owner)

        return ends

    @functools.wraps(last)
    def ends_at_once(owner: Any, *given: Any, **named: Any) -> Any:
        try:
            return last(owner, *given, **named)
        finally:
            note_counters(owner)

    return ends_at_once


# --- of pytest: `tests/conftest.py` has these hooks

_KEY = "reached states"


def _is_whole(config: pytest.Config) -> bool:
    """Whether the whole suite runs, with or without the slow tests."""
    option = config.option
    selected = (
        option.keyword,
        option.deselect,
        option.ignore,
        option.ignore_glob,
        getattr(option, "lf", False),  # of pytest's cache, which may be off
        getattr(option, "failedfirst", False),
    )
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and option.markexpr in ("", "not slow")
        and not any(selected)
        and not option.collectonly
    )


def pytest_configure(config: pytest.Config) -> None:
    workerinput = getattr(config, "workerinput", None)
    if _is_whole(config) if workerinput is None else workerinput[_KEY]:
        _read_counters()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of pytest-xdist: a worker does not know what was selected."""
    node.workerinput[_KEY] = _is_whole(node.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Of pytest-xdist: a worker has ended."""
    _reached.update(getattr(node, "workeroutput", {}).get(_KEY, ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_KEY] = sorted(_reached)
    elif exitstatus == pytest.ExitCode.OK and _is_whole(session.config) and missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _is_whole(terminalreporter.config) and (states := missing()):
        terminalreporter.section("states that no test has reached (tests/reached.py)", red=True)
        terminalreporter.write_line("\n".join(states))
