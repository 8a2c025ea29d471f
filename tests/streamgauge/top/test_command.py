"""`streamgauge top`: one report without a terminal, JSON, and the screen in a terminal until Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import termios
import time
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streamgauge.analytics.alerts.alert_states import Change, Condition, Key
from streamgauge.analytics.alerts.evaluator import event_rows
from streamgauge.cli import cli
from tests.dashboard.generated_store import APPS, NAMED_CLIENT, filled, filling
from tests.deadline import DEADLINE_S
from tests.tables import tables


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = filled(tmp_path_factory.mktemp("top"), streams=40, hours=0.2)
    condition = Condition(21.0, 20.0, "budget all is spent", time.time_ns())
    changes = [
        Change(str(uuid.uuid4()), Key(rule, None, None), "firing", condition)
        for rule in ("budget", "burn_rate")
    ]
    with filling(folder) as connection:
        connection.register(
            "fired",
            event_rows([(change, time.time_ns(), None) for change in changes], "analytics").to_arrow(),
        )
        connection.execute("INSERT INTO alert_events BY NAME FROM fired")
    return folder


def top(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["top", *arguments])


def test_without_a_terminal_one_report_is_printed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    found = top("--data", str(data), "--client", NAMED_CLIENT[1])
    assert found.exit_code == 0, found.output
    words = " ".join(found.output.split())
    assert re.search(rf"in flight( · about [\d.]+ \w+)* · client {NAMED_CLIENT[1]} ", words)
    assert {line.split()[1] for line in found.output.splitlines() if line.startswith("client ")} <= {
        "nightly"
    }
    assert "\x1b" not in found.output


def test_app_selects_streams(data: Path) -> None:
    def requests(*apps: str) -> int:
        chosen = [part for app in apps for part in ("--app", app)]
        report = json.loads(
            top("--data", str(data), "--once", "--format", "json", "--range", "1h", *chosen).output
        )
        return sum(group["requests"] for group in report["groups"])

    first, second, both = requests(APPS[0]), requests(APPS[1]), requests(*APPS)
    assert both == first + second
    assert 0 < first < both


def test_json_is_one_document(data: Path) -> None:
    found = json.loads(top("--data", str(data), "--once", "--format", "json", "--range", "1h").output)
    assert sum(group["requests"] for group in found["groups"]) > 20
    assert found["in_flight"] == 4
    costs = tables(data).query(
        "SELECT currency, sum(total) AS cost FROM spend WHERE total > 0 GROUP BY 1 ORDER BY 1"
    )
    assert [(row["currency"], row["cost"]) for row in found["cost"]] == [
        (c, pytest.approx(n)) for c, n in costs.rows()
    ]
    assert costs.height == 2
    assert found["budgets"] == ["budget all is spent"]


def test_missing_store_is_one_line(tmp_path: Path) -> None:
    found = top("--data", str(tmp_path), "--once")
    assert (found.exit_code, len(found.output.splitlines())) == (1, 1)


@pytest.mark.parametrize("key", [b"\x03", b"q"])
def test_screen_ends_at_ctrl_c_or_q_and_restores_the_terminal(data: Path, key: bytes) -> None:
    argv = [sys.executable, "-m", "streamgauge", "top", "--data", str(data), "--interval", "0.5"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", "NO_COLOR": "1"}
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells ignore it for commands in the background
        os.execve(argv[0], argv, environment)
    received, interrupted, deadline_s = b"", False, time.monotonic() + DEADLINE_S
    try:
        while time.monotonic() < deadline_s:
            received += os.read(terminal, 65_536)
            if not interrupted and received.count(b"4 in flight") > 1:
                os.write(terminal, key)
                interrupted = True
    except OSError:  # the process has closed the terminal
        pass
    finally:
        echoes = termios.tcgetattr(terminal)[3] & termios.ECHO
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, received
    assert echoes, "typed text is invisible"
    assert received.rstrip().endswith(b"\x1b[?1049l")
    assert b"Traceback" not in received
    assert b"\x1b[3" not in received, "NO_COLOR"
