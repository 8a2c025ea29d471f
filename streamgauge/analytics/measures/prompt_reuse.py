"""The columns `seen_tokens` to `instance_tokens` of `prompt_segments`: the prefixes of a prompt that a cache could have had.

Only prompts to the same provider and model with the same key are compared. Incomplete prompts and prompts without reported tokens are not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streamgauge.analytics.measures.cache_misses import lifetimes_s, rule_of
from streamgauge.analytics.measures.prompt_comparison import Prompt
from streamgauge.analytics.reports.prefixes import Prefixes, with_rest
from streamgauge.analytics.schema.stream_columns import StreamRow


class Reuse(NamedTuple):
    """Tokens of prefixes of a prompt. None: unknown."""

    seen: int | None = None
    kept: int | None = None
    available: int | None = None
    instance: int | None = None


_UNKNOWN = Reuse()


def reuse_of(
    known: Prefixes, prompt: Prompt, row: StreamRow | dict[str, Any], base: Prompt | None, shared: int
) -> Reuse:
    """Compare a prompt with the `known` prefixes, and add its own. `row`: its row of `streams`. `shared`: the number of first segments that
    equal those of `base`."""
    tokens, model = row["input_tokens"], row["request_model"] or row["response_model"]
    if not tokens or prompt.incomplete:
        return _UNKNOWN
    rule = rule_of(row["provider"], row["response_model"] or model)
    lifetimes = lifetimes_s(rule, prompt.marks)
    scope = row["provider"] or row["gateway"], row["client_id"], model
    placed = known.add(
        with_rest(prompt.segments, prompt.left_out, row["request_bytes"], prompt.stream_id),
        tokens,
        scope=scope,
        server=row["server_instance"],
        began_ns=prompt.started_ns,
        read_ns=prompt.cached_ns,
        base=base.placed if base is not None and base.scope == scope else None,
        shared=shared,
        **({"kept_ns": max(lifetimes) * 10**9} if lifetimes else {}),
    )
    prompt.placed, prompt.scope = placed, scope
    is_long = placed.available >= max(1, rule.least_tokens)
    instance = placed.at_server if is_long or placed.at_server is None else 0
    return Reuse(placed.seen, placed.available, placed.available if is_long else 0, instance)
