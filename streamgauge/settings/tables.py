"""Settings that are tables: `objectives`, `budgets`, `clients`, `labels` and `saved_views`.

Each is a table of the configuration file, JSON text of it, or flags. The parsers raise ValueError with one line, which names the key
and what it may be.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from streamgauge.analytics.schema.budgets import MAX_BUDGETS, Budget
from streamgauge.analytics.schema.clients import MAX_CLIENTS, NO_CLIENT_NAMES, Client, is_client_id
from streamgauge.analytics.schema.objectives import DEFAULT, LIMITS, MAX_OBJECTIVES, Objective
from streamgauge.analytics.schema.setting_rows import Text
from streamgauge.ingest.labels import MAX_LABELS, Label, parse_label
from streamgauge.settings.values import parse_seconds, text_pairs

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

OBJECTIVE = '{"model": "gpt-*", "ttft": "800ms", "goodput": 0.95}'
BUDGET = '{"client": "search-*", "period": "month", "amount": 500, "currency": "USD"}'
CLIENT = "9f86d081884c7d659a2feaa0c55ad015=billing"
LABEL = "team=header:x-team:plain"
SAVED_VIEW = "rate limits=streams?status=429&range=24h"
"""Examples for help texts and errors."""
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


class _Table(BaseModel):
    """One table of a list. The description of a key says what is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True)  # strict: 1 is no text, and true is no number


def model_of(row: type[DataclassInstance], **replaced: Any) -> type[BaseModel]:
    """The checks of a table whose keys are the fields of a row. `replaced`: annotations of keys that differ from their fields."""
    kinds: dict[Any, Any] = {str: Text, bool: Annotated[bool, Field(description="true or false")]}
    declared = get_type_hints(row, include_extras=True) | replaced
    keys: dict[str, Any] = {
        field.name: (
            kinds.get(declared[field.name], declared[field.name]),
            ... if field.default is MISSING else field.default,
        )
        for field in fields(row)
    }
    return create_model(row.__name__, __base__=_Table, **keys)


def _limit_ns(value: object) -> object:
    seconds = parse_seconds(value)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 86_400:
        raise ValueError("a duration such as 800ms or 2s")
    return round(seconds * 1e9)


_Limit = Annotated[int | None, BeforeValidator(_limit_ns)]


def parse_objectives(value: object) -> tuple[Objective, ...]:
    """Tables, objectives or JSON text of them, in the order of their priority."""
    limits = {f"{key}_ns": Annotated[_Limit, Field(alias=key)] for key in ("ttft", "itl")}
    found = _parse_tables(value, Objective, model_of(Objective, **limits), OBJECTIVE, _limited)
    return _distinct(found, MAX_OBJECTIVES, [DEFAULT.name, *(objective.name for objective in found)])


def _limited(objective: Objective) -> Objective:
    if all(getattr(objective, limit) is None for limit in LIMITS):
        raise ValueError("it has no limit. Add one of ttft, itl, error_rate, goodput")
    return objective


def parse_budgets(value: object) -> tuple[Budget, ...]:
    """Tables, budgets or JSON text of them."""
    found = _parse_tables(value, Budget, model_of(Budget), BUDGET)
    return _distinct(found, MAX_BUDGETS, [budget.name for budget in found])


def _parse_tables(
    value: object,
    kind: type[T],
    table: type[BaseModel],
    example: str,
    checked: Callable[[T], T] = lambda one: one,
) -> list[T]:
    """`checked` returns the value to use. Raises ValueError."""
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
            one = item if isinstance(item, kind) else kind(**table.model_validate(item).model_dump())
            found.append(checked(one))
        except ValueError as e:
            why = problem(e, table) if isinstance(e, ValidationError) else e
            raise ValueError(f"{kind.__name__.lower()} {number}: {why}") from None
    return found


def problem(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with the first key, and what is allowed: the description of its field, or the text of a validator's ValueError."""
    found = error.errors(include_url=False)[0]
    key, keys = (
        str(found["loc"][0]),
        {field.alias or name: field for name, field in model.model_fields.items()},
    )
    if found["type"] == "extra_forbidden":
        similar = difflib.get_close_matches(key, keys, 1)
        hint = f", did you mean {similar[0]!r}?" if similar else "."
        return f"unknown key {key!r}{hint} Allowed: {', '.join(keys)}"
    if found["type"] == "missing":
        return f"{key} is missing: {keys[key].description}"
    allowed = found["ctx"]["error"] if found["type"] == "value_error" else keys[key].description
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


def parse_labels(value: object) -> tuple[Label, ...]:
    """Tables, labels, JSON text of them, or texts such as `LABEL`, in one text separated by spaces."""
    if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
        value = value.split()
    if isinstance(value, list | tuple):
        value = [parse_label(item) if isinstance(item, str) else item for item in value]
    found = _parse_tables(value, Label, model_of(Label), LABEL, _read_label)
    return _distinct(found, MAX_LABELS, [label.name for label in found])


def _read_label(label: Label) -> Label:
    found = parse_label(f"{label.name}={label.source}")
    return replace(found, plain=label.plain, prometheus=label.prometheus)


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
