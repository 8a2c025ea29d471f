"""Tables of reports: the name, heading, unit, help and format of each column, stated beside the SQL of the report.

Pages and `top` show them. Columns of SQL that no table has are for other readers, such as charts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.outcomes import NOT_COUNTED, OK

Row = Mapping[str, Any]
State = Literal["bad", "good", "muted"]
Opens = (
    Literal["stream", "session", "turn", "trace", "group"]
    | Mapping[str, str]
    | Callable[[Row], Mapping[str, str] | None]
)

WORD = 17
"""Characters of a text column before its values wrap inside words."""
ID_DIGITS = 8
OUTCOME_SIGNS = {OK: "✓", "client_abort": "◌", "tap_lost": "?", "refused": "⊘"}
"""Signs that distinguish outcomes without colour. All other outcomes are errors and have the sign ✕."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column. `text` receives the value of `name`, which is never None or NaN."""

    name: str
    heading: str
    """With `{by}` or another word that the reader of the report fills in."""
    unit: str | None = None
    """The heading names it."""
    text: Callable[[Any], str] = str
    form: str | None = None
    """Format of instants, with `%f` cut to ms. Empty: seconds, with the date if there are several."""
    number: bool = False
    """Right-aligned, never wrapped."""
    line: bool = False
    """Never wrapped."""
    mono: bool = False
    help: str | None = None
    priority: int = 1
    """Columns with 0 never disappear. Higher numbers disappear first."""
    opens: Opens | None = None
    """What a click opens: the page of an id, the page for one group only, or the streams that the filters of *Streams* select."""
    of: str = ""
    """Column and dimension of the group whose streams `opens` selects. By default `name`, of the dimension by which rows are grouped."""
    link: Callable[[Row], str | None] | None = None
    """Address that a click opens."""
    opens_row: bool = False
    """A click anywhere on the row opens the link of this column."""
    state: Callable[[Row], State | None] | None = None
    sort_address: str | None = None
    """Address of this page sorted by this column."""
    is_sign: bool = False
    """In a narrow box, only the first word is visible, which says the same."""
    wraps_on_phone: bool = False
    """In such a box, values wrap after a quarter of its width."""
    bar: bool = False
    """A bar behind the number, for ratios from 0 to 1."""
    min_characters: int = WORD

    @property
    def title(self) -> str:
        """The heading with the unit."""
        return f"{self.heading}, {self.unit}" if self.unit else self.heading


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """The columns of a report in their order."""

    label: str
    """Its name for screen readers, with words as in headings."""
    columns: Sequence[Column]
    empty: str = ""
    """The text instead of a table without rows."""
    stacks: bool = True
    """On a phone, each row becomes a block of lines. For rows without a page of their own."""
    zone_of: str = ""
    """The instants whose time zone is named below the table."""
    order: str | None = None
    """The column by which the rows are sorted, descending, if readers can choose it."""


def table(label: str, *columns: Column, **options: Any) -> ReportTable:
    """A table with these columns."""
    return ReportTable(label=label, columns=columns, **options)


def text(name: str, heading: str, **options: Any) -> Column:
    """A column of texts."""
    return Column(name=name, heading=heading, **options)


def number(
    name: str, heading: str, *, digits: int = 0, factor: float = 1, sign: bool = False, **options: Any
) -> Column:
    """A column of numbers, multiplied by `factor`."""
    form = f"{'+' if sign else ''},.{digits}f"
    return Column(name=name, heading=heading, text=lambda value: format(value * factor, form), number=True, **options)  # fmt: skip


def ms(name: str, heading: str, **options: Any) -> Column:
    """A column of durations in ns, shown in ms."""
    return number(name, heading, unit="ms", factor=1e-6, **options)


def seconds(name: str, heading: str, *, digits: int = 1, **options: Any) -> Column:
    """A column of durations in ns, shown in s."""
    return number(name, heading, unit="s", digits=digits, factor=1e-9, **options)


def percent(name: str, heading: str, *, digits: int = 1, **options: Any) -> Column:
    """A column of ratios, shown in %."""
    return number(name, heading, unit="%", digits=digits, factor=100, **options)


def instant(name: str, heading: str, *, form: str = "%m-%d %H:%M:%S.%f", **options: Any) -> Column:
    """A column of instants, shown in the time zone of the reader."""
    return Column(name=name, heading=heading, form=form, line=True, **options)


def outcome_state(outcome: str | None) -> State | None:
    """Whether an outcome is an error, or does not count. None: neither."""
    if outcome is None or outcome == OK:
        return None
    return "muted" if outcome in NOT_COUNTED else "bad"


def outcome(name: str = "outcome", *, priority: int = 0, **options: Any) -> Column:
    """Outcomes with their signs. Errors have a colour."""
    return Column(
        name=name, heading="Outcome", text=lambda value: f"{OUTCOME_SIGNS.get(value, '✕')} {value}", line=True, is_sign=True,
        state=lambda row: outcome_state(row.get(name)), priority=priority, **options,
    )  # fmt: skip


def _id(name: str, heading: str, opens: Opens, what: str, part: slice, **options: Any) -> Column:
    """Ids of which the table shows only a part. `what` names the page that they open."""
    help_text = f"Opens {what}. The text is the {'last' if part.start else 'first'} digits of its id."
    shown: dict[str, Any] = {"mono": True, "line": True, "priority": 0, "help": help_text} | options
    return Column(name=name, heading=heading, text=lambda value: str(value)[part], opens=opens, **shown)


def stream(
    name: str = "stream_id", heading: str = "Stream", what: str = "the stream", **options: Any
) -> Column:
    """Ids of streams."""
    # Ids of streams begin with their time, so only the end tells two streams of one table apart.
    return _id(name, heading, "stream", what, slice(-ID_DIGITS, None), **options)


GROUP = text("name", "{By}", text=shortened, opens="group")
NAME = text("name", "Name", text=shortened, opens="group", help="Filters all pages by this name.")
DIMENSION = text("dimension", "Kind", line=True, priority=2)
STREAM = stream(opens_row=True)
SESSION = _id("session_id", "Session", "session", "the session", slice(10), opens_row=True)
TRACE = _id("trace_id", "Trace", "trace", "the trace", slice(ID_DIGITS), opens_row=True)
MODEL = text("model", "Model", priority=2)
GATEWAY = text("gateway", "Gateway", priority=2, min_characters=11)
CLIENT = text("client", "Client", priority=6, min_characters=11, text=shortened,
              help="Name of the client, or keyed hash of its API key.")  # fmt: skip
HTTP = number("http_status", "HTTP")
CAUSE = text("error_type", "Cause", priority=3, min_characters=12)
TOKENS_IN = number("input_tokens", "Tokens in", priority=3, help="Reported input tokens.")
TOKENS_OUT = number("output_tokens", "Tokens out", priority=3, help="Reported output tokens.")
TTFT = ms("ttft_ns", "TTFT", priority=3)
REQUESTS = number("requests", "Requests")
STREAMS = number("streams", "Streams")
ERROR_RATE = percent("error_rate", "Error rate", help=metric_help("error_rate"))
