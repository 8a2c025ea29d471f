"""The report on terminals of several sizes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from streamgauge.analytics.diagnosis.diagnosis import Diagnosis
from streamgauge.analytics.diagnosis.report import Report
from streamgauge.commands.top.keys import View
from streamgauge.commands.top.screen import rendered
from tests.streamgauge.top.test_report import GROUP, OFFENDER, RANGE, report


def lines(
    shown: Report,
    width: int,
    height: int | None = None,
    *,
    color: bool = False,
    view: View | None = None,
    link: str | None = None,
) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
    )
    console.print(
        rendered(shown, console, height=height, view=view or (View() if height else None), link=link)
    )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_incident_is_named_with_its_objectives_and_rows() -> None:
    cost = [{"currency": "USD", "cost": 1.204, "requests": 9, "estimated": 1}]
    given = report(
        note="analytics does not respond", cost=cost, budgets=["budget all is spent: 3.00 of 2.00 USD"]
    )
    shown = " ".join(" ".join(lines(given, 160)).split())
    zone = RANGE.until.astimezone().strftime("%H:%M:%S %Z")
    for text in (
        f"streamgauge top · {zone} · last",
        "✗ Error rate since",
        ": m @ [red]g, client billing, 70 % failing (objective 5 %), HTTP 429. Unaffected: gateway eu.",
        "error rate 7.00 % (limit 5.00 %)",
        "analytics does not respond",
        "2 in flight · about 1.20 USD",
        "budget all is spent: 3.00 of 2.00 USD",
    ):
        assert text in shown
    assert "m [red]g 2 1.5 s 0.50 70.0 % 100 ms 900 ms – 41.2" in shown
    assert "client billing 70.0 % 100 % 40.0 % 70.0 %" in shown


def test_keys_sort_and_filter_the_rows_and_the_footer_shows_them() -> None:
    groups = [GROUP | {"model": f"model-{n}", "error_rate": n / 10, "itl_p50_ns": None} for n in range(3)]
    shown = report(groups=[*groups, GROUP | {"model": "unknown", "error_rate": None}])

    def models(keys: str) -> list[str]:
        view = View()
        view.press(keys)
        found = lines(shown, 120, 40, view=view)
        assert view.footer in found[-1]
        return [line.split()[0] for line in found if line.startswith(("model-", "unknown"))]

    assert models("s") == ["model-2", "model-1", "model-0", "unknown"]
    assert models("sS") == ["model-0", "model-1", "model-2", "unknown"]
    assert models("/EL-1") == models("/el-1\r") == ["model-1"]
    assert models("/el-1x\x7f\rs") == ["model-1"]
    assert len(models("/el-1\x1b")) == len(models("\x1b[A")) == 4
    assert "No model or gateway matches." in lines(shown, 120, 40, view=View(filter="nothing"))


def test_q_ends_but_not_within_a_filter() -> None:
    view = View()
    view.press("/q\r")
    assert (view.filter, view.ends) == ("q", False)
    view.press("q")
    assert view.ends


def test_the_link_to_the_dashboard_is_shown() -> None:
    assert "  http://127.0.0.1:1/?range=15m" in lines(report(), 80, link="http://127.0.0.1:1/?range=15m")


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
    assert found[-1].startswith("q quit")
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
