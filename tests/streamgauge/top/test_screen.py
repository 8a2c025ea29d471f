"""The report on terminals of several sizes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from streamgauge.analytics.diagnosis.diagnosis import Diagnosis
from streamgauge.analytics.diagnosis.report import Report
from streamgauge.top.screen import rendered
from tests.streamgauge.top.test_report import GROUP, OFFENDER, RANGE, report


def lines(shown: Report, width: int, height: int | None = None, *, color: bool = False) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
    )
    console.print(rendered(shown, console, height=height, footer="end" if height else None))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_incident_is_named_with_its_objectives_and_rows() -> None:
    shown = " ".join(" ".join(lines(report(note="analytics does not respond"), 160)).split())
    zone = RANGE.until.astimezone().strftime("%H:%M:%S %Z")
    for text in (
        f"streamgauge top · {zone} · last",
        "✗ Error rate 7 % (objective 5 %) since",
        ": m @ [red]g, client billing, 70 % failing, HTTP 429. Unaffected: eu.",
        "error rate 7.00 % (limit 5.00 %)",
        "analytics does not respond",
    ):
        assert text in shown
    assert "m [red]g 2 1.5 s 0.50 70.0 % 100 ms 900 ms – 41.2" in shown
    assert "client billing 70.0 % 100 % 40.0 % 70.0 %" in shown


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_lines_fit_and_columns_are_left_out(width: int) -> None:
    group = GROUP | {
        "model": "a-model-with-a-name-of-more-than-forty-characters",
        "gateway": "gateway-" + "g" * 30,
    }
    found = lines(report(groups=[group], offenders=[OFFENDER | {"name": "n" * 60}]), width)
    assert max(map(len, found)) <= width
    header = next(line for line in found if line.startswith("Mod"))
    assert ("Errors" in header, "TTFT p50" in header) == (width >= 40, width >= 120)


@pytest.mark.parametrize("height", [9, 14, 24, 40])
def test_report_is_not_higher_than_the_terminal(height: int) -> None:
    groups = [GROUP | {"gateway": f"g{n}"} for n in range(30)] + [GROUP]
    found = lines(report(groups=groups, offenders=[OFFENDER] * 8), 100, height)
    assert len(found) <= height
    assert found[-1] == "end"
    assert any("[red]g" in line and "70.0 %" in line for line in found), "the affected row is first"


def test_values_above_the_objective_are_red_and_states_have_a_sign() -> None:
    colored = "\n".join(lines(report(), 160, color=True))
    assert "\x1b[1;31m✗" in colored
    assert "31m70.0 %" in colored
    assert "31m900 ms" not in colored
    quiet = report(
        diagnosis=Diagnosis(state="no_data", since=RANGE.since, until=RANGE.until), groups=[], offenders=[]
    )
    assert "No streams in this range." in lines(quiet, 80)
