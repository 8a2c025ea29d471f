"""Settings that are tables: `objectives`, `budgets`, `clients`, `labels` and `saved_views`.

Each is a table of the configuration file, JSON text of it, or flags. The parsers raise ValueError with one line, which names the key
and what it may be.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from streamgauge.analytics.schema.budgets import MAX_BUDGETS, Budget
from streamgauge.analytics.schema.clients import MAX_CLIENTS, NO_CLIENT_NAMES, Client, is_client_id
from streamgauge.analytics.schema.objectives import DEFAULT, GLOBS, MAX_OBJECTIVES, Objective
from streamgauge.ingest.labels import MAX_LABELS, Label, parse_label
from streamgauge.values import parse_seconds, text_pairs

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

OBJECTIVE = '{"model": "gpt-*", "ttft": "800ms", "goodput": 0.95}'
BUDGET = '{"client": "search-*", "period": "month", "amount": 500, "currency": "USD"}'
CLIENT = "9f86d081884c7d659a2feaa0c55ad015=billing"
LABEL = "team=header:x-team:plain"
SAVED_VIEW = "rate limits=streams?status=429&range=24h"
"""Examples for help texts and errors."""
MAX_TEXT = 256
MAX_NAME_CHARS = 64
MAX_VIEWS = 50
MAX_ADDRESS_CHARS = 2000
NOT_SAVED = frozenset({"token"})
"""URL parameters that a view leaves out."""
_PAGE = re.compile(r"[a-z]*")


class SavedView(NamedTuple):
    """A named page with its time range and filters."""

    name: str
    address: str
    """Relative to the dashboard: `PAGE?PARAMETERS`."""

    def __str__(self) -> str:
        """As the flag `--saved-views` accepts it."""
        return f"{self.name}={self.address}"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("text in quotes")
    return text


def _glob(text: str) -> str:
    # `fnmatch` would take […] as a set of characters, and only * and ? are documented.
    if set(text) & set("[]\\"):
        raise ValueError("a name with the wildcards * and ?")
    return text


def _label_glob(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*=.+", text):
        raise ValueError("a label and a glob, such as team=search-*")
    return _glob(text)


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError("a time zone such as Europe/Berlin") from None
    return name


Text = Annotated[
    str, Field(min_length=1, max_length=MAX_TEXT, description="text in quotes"), AfterValidator(_printable)
]
Glob = Annotated[Text, AfterValidator(_glob)]
Limit = Annotated[
    float | None,
    BeforeValidator(parse_seconds),
    Field(gt=0, le=86_400, allow_inf_nan=False, description="a duration such as 800ms or 2s"),
]
Severity = Annotated[Literal["page", "ticket", "none"], Field(description="page, ticket or none")]


class _Table(BaseModel):
    """One table of a list. The description of a key says what is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True)  # strict: 1 is no text, and true is no number


class _GlobTable(_Table):
    """A table that applies to what its globs match."""

    name: Text = ""
    """By default the globs, and the period of a budget."""
    model: Glob = "*"
    gateway: Glob = "*"
    client: Glob = "*"


class ObjectiveTable(_GlobTable):
    """One table `[[objectives]]`."""

    label: Glob = "*"
    ttft: Limit = None
    itl: Limit = None
    error_rate: float | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="a share from 0 to 1")
    goodput: float | None = Field(
        None, ge=0, lt=1, allow_inf_nan=False, description="a share from 0 to less than 1"
    )
    severity: Severity = "page"

    def objective(self) -> Objective:
        """The objective. Raises ValueError for a table without a limit."""
        limits: dict[str, Any] = {
            "ttft_ns": self.ttft and round(self.ttft * 1e9),
            "itl_ns": self.itl and round(self.itl * 1e9),
            "error_rate": self.error_rate,
            "goodput": self.goodput,
        }
        if all(limit is None for limit in limits.values()):
            raise ValueError("it has no limit. Add one of ttft, itl, error_rate, goodput")
        globs = self.model_dump(include={*GLOBS})
        return Objective(self.name or _name_of(globs), **globs, **limits, severity=self.severity)


def _name_of(globs: Mapping[str, str]) -> str:
    texts = (glob if key == "label" else f"{key}={glob}" for key, glob in globs.items() if glob != "*")
    return " ".join(texts) or "all"


class BudgetTable(_GlobTable):
    """One table `[[budgets]]`."""

    label: Annotated[Text, AfterValidator(_label_glob)] | None = None
    period: Literal["day", "week", "month"] = Field(description="day, week or month")
    amount: float = Field(gt=0, allow_inf_nan=False, description="a number above 0")
    currency: str = Field(pattern="^[A-Z]{3}$", description="a currency code such as USD")
    time_zone: Annotated[Text, AfterValidator(_time_zone)] = "UTC"
    severity: Severity = "page"

    def budget(self) -> Budget:
        globs = self.model_dump(include={"model", "gateway", "client"})
        if self.label is not None:
            label, _, globs[label] = self.label.partition("=")
        return Budget(**self.model_dump() | {"name": self.name or f"{_name_of(globs)} per {self.period}"})


def parse_objectives(value: object) -> tuple[Objective, ...]:
    """Tables, objectives or JSON text of them, in the order of their priority."""
    found = _parse_tables(value, Objective, ObjectiveTable, ObjectiveTable.objective, OBJECTIVE)
    return _distinct(found, MAX_OBJECTIVES, [DEFAULT.name, *(objective.name for objective in found)])


def parse_budgets(value: object) -> tuple[Budget, ...]:
    """Tables, budgets or JSON text of them."""
    found = _parse_tables(value, Budget, BudgetTable, BudgetTable.budget, BUDGET)
    return _distinct(found, MAX_BUDGETS, [budget.name for budget in found])


def _parse_tables(
    value: object, kind: type[T], table: type[Model], convert: Callable[[Model], T], example: str
) -> list[T]:
    try:
        given: Any = json.loads(value) if isinstance(value, str) else value
        items = [
            json.loads(item) if isinstance(item, str) else item
            for item in ([given] if isinstance(given, Mapping) else given)
        ]
    except (ValueError, TypeError):
        items = [None]
    found: list[T] = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping | kind):
            raise ValueError(f"the value is not a list of tables such as {example}")
        try:
            found.append(item if isinstance(item, kind) else convert(table.model_validate(item)))
        except ValidationError as e:
            raise ValueError(f"{kind.__name__.lower()} {number}: {problem(e, table)}") from None
        except ValueError as e:
            raise ValueError(f"{kind.__name__.lower()} {number}: {e}") from None
    return found


def problem(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with the first key, and what is allowed: the description of its field, or the text of a validator's ValueError."""
    found = error.errors(include_url=False)[0]
    key = str(found["loc"][0])
    if found["type"] == "extra_forbidden":
        similar = difflib.get_close_matches(key, model.model_fields, 1)
        hint = f", did you mean {similar[0]!r}?" if similar else "."
        return f"unknown key {key!r}{hint} Allowed: {', '.join(model.model_fields)}"
    if found["type"] == "missing":
        return f"{key} is missing: {model.model_fields[key].description}"
    allowed = found["ctx"]["error"] if found["type"] == "value_error" else model.model_fields[key].description
    return f"{key} = {found['input']!r} is not {allowed}"


def parse_clients(value: object) -> tuple[Client, ...]:
    """A table of names by client id, JSON text of it, or texts such as `CLIENT`."""
    pairs = text_pairs(value, what=f"a table of names by client id, such as {CLIENT}")
    found = [_client(client_id, name) for client_id, name in pairs]
    return _distinct(found, MAX_CLIENTS, [client.client_id for client in found], [c.name for c in found])


def _client(client_id: object, name: object) -> Client:
    if not isinstance(client_id, str) or not is_client_id(client_id):
        raise ValueError(f"{client_id!r} is not a client id: 32 hexadecimal digits, such as in {CLIENT}")
    text = _name(name)
    if text is None or is_client_id(text):  # a name that looks like an id could be taken for another client
        raise ValueError(f"the name of {client_id} is not text of 1 to {MAX_NAME_CHARS} characters")
    if text in NO_CLIENT_NAMES:
        raise ValueError(f"the name {text!r} has another meaning. Choose another name")
    return Client(client_id, text)


class LabelTable(_Table):
    """One table `[[labels]]`. `source` as in a text, such as `LABEL`, without the options."""

    name: Text
    source: Text
    plain: bool = Field(False, description="true or false")
    prometheus: bool = Field(False, description="true or false")

    def label(self) -> Label:
        return replace(
            parse_label(f"{self.name}={self.source}"), plain=self.plain, prometheus=self.prometheus
        )


def parse_labels(value: object) -> tuple[Label, ...]:
    """Tables, labels, JSON text of them, or texts such as `LABEL`, in one text separated by spaces."""
    if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
        value = value.split()
    if isinstance(value, list | tuple):
        value = [parse_label(item) if isinstance(item, str) else item for item in value]
    found = _parse_tables(value, Label, LabelTable, LabelTable.label, LABEL)
    return _distinct(found, MAX_LABELS, [label.name for label in found])


def parse_saved_views(value: object) -> tuple[SavedView, ...]:
    """A table of addresses by name, JSON text of it, or texts such as `SAVED_VIEW`."""
    pairs = text_pairs(value, what=f"a table of addresses by name, such as {SAVED_VIEW}")
    found = [_view(name, address) for name, address in pairs]
    return _distinct(found, MAX_VIEWS, [view.name for view in found])


def _view(name: object, address: object) -> SavedView:
    """The page and the parameters of an address, which may be copied from a browser. Its host and its token are left out."""
    text = _name(name)
    if text is None or "=" in text:  # a flag is NAME=ADDRESS
        raise ValueError(
            f"the name {str(name).strip()[:80]!r} is not text of 1 to {MAX_NAME_CHARS} characters without equals signs"
        )
    parts = urlsplit(address.strip() if isinstance(address, str) else "")
    page = parts.path.rpartition("/")[2]
    if (
        parts.scheme not in ("", "http", "https")  # the sidebar makes a link of it: no `javascript:`
        or not (page or parts.query)
        or not _PAGE.fullmatch(page)
        or len(str(address)) > MAX_ADDRESS_CHARS
    ):
        raise ValueError(
            f"the address of {name!r} is not a page of the dashboard with parameters, such as in {SAVED_VIEW}"
        )
    kept = [(key, v) for key, v in parse_qsl(parts.query, keep_blank_values=True) if key not in NOT_SAVED]
    return SavedView(text, f"{page}?{urlencode(kept)}" if kept else page)


def _name(given: object) -> str | None:
    """A name of a client or a view, None if it is not one."""
    name = given.strip() if isinstance(given, str) else ""
    return name if 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() else None


def _distinct(found: Sequence[T], limit: int, *texts: Sequence[str]) -> tuple[T, ...]:
    """The entries. Raises ValueError if a text occurs twice in a list of `texts`, or if there are more than `limit` entries."""
    for one in texts:
        if twice := next((text for text in one if one.count(text) > 1), None):
            raise ValueError(f"{twice!r} is taken: give each entry its own")
    if len(found) > limit:
        raise ValueError(f"there are {len(found)} entries, above the limit of {limit}")
    return tuple(found)
