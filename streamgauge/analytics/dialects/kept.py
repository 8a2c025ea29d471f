"""What redaction keeps of the members that dialects decode, declared beside their types.

A member of a Struct is a piece of text unless its annotation says otherwise: its name is kept, its text and its numbers are filled.
Members of the types `int`, `float` and `bool` are counts. `Members` declares those that are looked up by name.
`streamgauge.ingest.redaction.json_keys` has the rules, and reads the list that `key_groups` makes of all declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Annotated, Any, get_args

import msgspec

from streamgauge.ingest.redaction.json_keys import RULES

_NO_WIRE = ("dialect", "events")
"""Modules whose Structs are not decoded from JSON."""


def _kept(rule: str) -> msgspec.Meta:
    return msgspec.Meta(extra={"redaction": rule})


TEXT, CONTENT, OUTPUT, CODE = map(_kept, ("text", "content", "output", "code"))
NAME, WORD, ID, TITLE = map(_kept, ("name", "word", "id", "title"))
COUNT, NUMBERS, PATH, MEDIA_TYPE = map(_kept, ("count", "numbers", "path", "media_type"))

Name = Annotated[str | None, NAME]
Word = Annotated[str | None, WORD]
Id = Annotated[str | None, ID]
Title = Annotated[str | None, TITLE]
Term = Annotated[Any, NAME]
Count = Annotated[Any, COUNT]
Report = Annotated[Any, NUMBERS]
Content = Annotated[Any, CONTENT]


class Members(dict[str, str]):
    """Members that a module looks up by name → rule."""


def members(**names_by_rule: str) -> Members:
    """Declare members, their names separated by blanks, at the top level of a module."""
    return Members((name, rule) for rule, names in names_by_rule.items() for name in names.split())


def key_groups(sources: Iterable[ModuleType | Members]) -> dict[str, list[str]]:
    """Rule → the members that are declared for it. Raises ValueError if two declarations of a member differ."""
    declared: dict[str, tuple[str, object]] = {}
    for source in sources:
        for name, rule in source.items() if isinstance(source, Members) else _declared(source):
            before, where = declared.setdefault(name, (rule, source))
            if before != rule:
                raise ValueError(
                    f"the member {name!r} is {before} in {where} and {rule} in {source}: redaction does not know the dialect. "
                    "Declare both alike"
                )
    groups = {
        rule: sorted(name for name, (declared_rule, _) in declared.items() if declared_rule == rule)
        for rule in RULES
    }
    return {rule: names for rule, names in groups.items() if names}


def _declared(module: ModuleType) -> Iterator[tuple[str, str]]:
    for value in vars(module).values():
        if isinstance(value, Members):
            yield from value.items()
        elif isinstance(value, type) and issubclass(value, msgspec.Struct):
            of_wire = (
                value.__module__ == module.__name__ and module.__name__.rpartition(".")[2] not in _NO_WIRE
            )
            yield from (
                (field.encode_name, _rule_of(field.type))
                for field in msgspec.structs.fields(value)
                if of_wire
            )


def _rule_of(of: Any) -> str:
    metas = [meta for meta in getattr(of, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    if metas and metas[0].extra:
        return str(metas[0].extra["redaction"])
    types = {*(get_args(of) or (of,))} - {type(None)}
    return "count" if types and types <= {int, float, bool} else "text"
