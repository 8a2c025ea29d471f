"""Why the prompt cache missed, by comparing a prompt with an earlier one of its session. Pure.

docs/explanation/measurement.md has the definitions. Readable tokens are those that the earlier request read from the cache or wrote to it,
else its input tokens. A hit read at least `HIT_SHARE` of them, less `HIT_TOKENS`. Of several reasons, the first in the order of
`reason_of` counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from streamgauge.analytics.measures.prompt_comparison import Prompt
from streamgauge.analytics.schema.stream_columns import StreamRow
from streamgauge.ingest import identifiers
from streamgauge.ingest.records import Segment

HIT_SHARE = 0.9
HIT_TOKENS = 128
"""Some providers cache blocks of this size."""
_MARK_S = {"5m": 300, "ephemeral": 300, "default": 300, "30m": 1800, "1h": 3600, "12h": 43_200}


class CacheRule(NamedTuple):
    """What a provider documents about its cache. None: not documented."""

    provider: str
    """Glob. The first rule that matches applies."""
    models: str
    """Globs, separated by spaces."""
    least_tokens: int
    """A shorter prompt is not cached."""
    lifetime_s: int | None
    """Time without use after which a prefix may be evicted, unless a cache mark has another."""
    source: str
    lookback: int | None = None
    """Blocks before a cache mark in which the provider searches for an earlier one."""


_ANTHROPIC = "https://platform.claude.com/docs/en/build-with-claude/prompt-caching"
_OPENAI = "https://developers.openai.com/api/docs/guides/prompt-caching"
_AZURE = "https://learn.microsoft.com/azure/foundry/openai/how-to/prompt-caching"
_GOOGLE = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/models/context-cache/context-cache-overview"
_DAY_S = 86_400
RULES = (
    *(
        CacheRule("*", models, least, 300, _ANTHROPIC, 20)
        for models, least in (
            ("*claude-opus-4?[56]* *claude-haiku-4?5*", 4096),
            ("*claude-opus-4?7* *claude-mythos-preview* *claude-3*haiku*", 2048),
            ("*claude-sonnet-5?5*", 512),
            ("*claude-opus-4* *claude-sonnet-4* *claude-sonnet-5* *claude-3*", 1024),
            ("*claude*", 512),
        )
    ),
    CacheRule("*openai", "gpt-5.[6-9]* gpt-[6-9]*", 1024, 1800, _OPENAI),
    CacheRule("openai", "gpt-5* gpt-4.1*", 1024, _DAY_S, _OPENAI),
    CacheRule("azure.ai.openai", "gpt-5.5*", 1024, _DAY_S, _AZURE),
    CacheRule("*openai", "*", 1024, 600, _OPENAI),
    CacheRule("gcp.*", "*gemini-2*", 2048, _DAY_S, _GOOGLE),
    CacheRule("gcp.*", "*gemini*", 4096, _DAY_S, _GOOGLE),
    CacheRule("deepseek", "*", 64, None, "https://api-docs.deepseek.com/news/news0802"),
    CacheRule("groq", "*", 128, 7200, "https://console.groq.com/docs/prompt-caching"),
    CacheRule("alibaba", "*", 256, None, "https://www.alibabacloud.com/help/model-studio/context-cache"),
    CacheRule("*", "*", 0, None, ""),
)
_NEEDS_MARKS = ("anthropic", "aws.bedrock", "gcp.vertex_ai")
"""Providers that cache Anthropic's Messages only at cache marks."""
_CHANGES = {
    "model": "model_changed",
    "settings": "settings_changed",
    "tool": "tools_changed",
    "system": "system_changed",
}
_MODEL_CHANGED = "model_changed", "model"
_OF_TOOLS = ("tool_call", "tool_result")
_SECTIONS = [*_CHANGES, "message"]
"""Parts of a prompt in their order."""
_GROUPS = {
    "prompt_cache_key_changed": "settings_changed", "text_format_changed": "settings_changed",
    "reasoning_effort_changed": "settings_changed", "verbosity_changed": "settings_changed",
    "service_tier_changed": "settings_changed", "input_changed": "messages_changed", "context_compacted": "messages_changed",
}  # fmt: skip
"""Provider's reason → ours."""


NOT_COMPARED = frozenset({"too_short", "no_marker", "not_comparable", "first_request"})
"""Reasons that do not follow from a comparison."""


class CacheMiss(NamedTuple):
    """Why a request missed. `tokens`: those that the cache would have had, None if unknown."""

    reason: str
    segment: str | None = None
    tokens: int | None = None


def is_same_reason(provider: str, compared: str) -> bool:
    """Whether a provider's reason and that of the comparison agree."""
    return _GROUPS.get(provider, provider) == compared


@lru_cache(1_000)
def rule_of(provider: str | None, model: str | None) -> CacheRule:
    by, of = (provider or "").lower(), (model or "").lower()
    matching = (rule for rule in RULES if fnmatchcase(by, rule.provider))
    return next(rule for rule in matching if any(fnmatchcase(of, glob) for glob in rule.models.split()))


def lifetimes_s(rule: CacheRule, marks: Iterable[str | None]) -> list[int]:
    """Known lifetimes of the parts of a prompt with these cache marks. Without marks: that of the provider."""
    found = [_MARK_S.get(mark, rule.lifetime_s) for mark in filter(None, marks)] or [rule.lifetime_s]
    return [one for one in found if one is not None]


def reason_of(row: StreamRow, prompt: Prompt, base: Prompt | None, shared: int) -> CacheMiss | None:
    """Why a request missed the cache. None: a hit, or the response does not report cached tokens.

    `base` is the earlier prompt, and `shared` the number of equal first segments.
    """
    assert prompt.served is not None
    cached, tokens = prompt.served.cached_input_tokens, prompt.served.input_tokens
    if cached is None or not tokens:
        return None
    rule = rule_of(row["provider"], row["response_model"] or row["request_model"])
    same_conversation = base is not None and _is_same_conversation(prompt, base, shared)
    if base is None or not (same_conversation or shared >= base.head_count):
        if cached:
            return None
        return CacheMiss(_first_reason(row, [prompt], rule, tokens))
    could = _could_read(base, shared, whole=same_conversation, needs_marks=_needs_marks(row))
    if not could or (cached and cached >= HIT_SHARE * could - HIT_TOKENS):
        return None
    missed = max(0, min(could, tokens) - cached)
    early = _first_reason(row, [prompt, base], rule, min(could, tokens))
    if early != "first_request":
        return CacheMiss(early, None, missed if early == "no_marker" else None)
    end = min(len(base.segments), len(prompt.segments))
    changed = _change(prompt.segments, base.segments, shared) if shared < end else None
    if base.served is not None and _differ(base.served.request_model, row["request_model"]):
        changed = _MODEL_CHANGED  # some requests name it only in their path
    if changed is None and base.left_out:
        return CacheMiss("not_comparable")
    if changed is not None and same_conversation:
        return CacheMiss(*changed, missed)
    return CacheMiss(*(_other_reason(prompt, base, shared, rule) or changed or ("unexplained", None)), missed)


def _needs_marks(row: StreamRow) -> bool:
    return row["dialect"] == "anthropic_messages" and row["provider"] in _NEEDS_MARKS


def _first_reason(row: StreamRow, prompts: list[Prompt], rule: CacheRule, tokens: int) -> str:
    """The reason that follows without a comparison of the segments. `prompts`: the prompt, then the earlier one if there is one."""
    if tokens < rule.least_tokens:
        return "too_short"
    if _needs_marks(row) and not all(any(prompt.marks) for prompt in prompts):
        return "no_marker"
    prompt = prompts[0]
    has_past = (row["turn"] or 1) > 1 or any(one.kind in _OF_TOOLS for one in prompt.segments)
    if prompt.incomplete or (prompt.is_unexpected and has_past):
        return "not_comparable"
    return "first_request"


def _is_same_conversation(prompt: Prompt, base: Prompt, shared: int) -> bool:
    """Whether the prompts share a message."""
    if shared and base.segments[shared - 1].message >= 0:
        return True
    of = {one.hash for one in base.segments if one.message >= 0}
    return any(one.message >= 0 and one.hash in of for one in prompt.segments)


def _could_read(base: Prompt, shared: int, *, whole: bool, needs_marks: bool) -> int:
    """Readable tokens of the earlier prompt: of the whole prompt, or of the shared prefix."""
    served = base.served
    assert served is not None
    stored = (served.cached_input_tokens or 0) + (served.cache_write_tokens or 0)
    could = stored if needs_marks and stored else served.input_tokens or 0
    if whole:
        return could
    size = sum(one.size for one in base.segments)
    return could * sum(one.size for one in base.segments[:shared]) // max(1, size)


def _section(segments: list[Segment], place: int) -> str:
    """The part of the prompt that a segment belongs to. A system text after the first message is a message."""
    one = segments[place]
    before = (other for other in segments[:place] if other.message >= 0 and other.kind != "system")
    if one.kind in _CHANGES and (one.message < 0 or next(before, None) is None):
        return one.kind
    return "message"


def _change(new: list[Segment], old: list[Segment], place: int) -> tuple[str, str]:
    """Reason and name of the first segment that differs. A removed segment has its name in the earlier prompt."""
    sections = _section(new, place), _section(old, place)
    section = min(sections, key=_SECTIONS.index)
    one = new[place] if sections[0] == section else old[place]
    if section == "message":
        return (
            "messages_changed",
            f"message {min(each.message for each in (new[place], old[place]) if each.message >= 0)}",
        )
    if section == "tool":
        news, olds = ([each.hash for each in of if each.kind == "tool"] for of in (new, old))
        if sorted(news) == sorted(olds):
            return "tools_changed", "order of tools"
    if (
        section in ("tool", "system")
        and sections[0] == sections[1]
        and one.hash in {each.hash for each in old}
    ):
        one = old[place]  # it was removed
    return _CHANGES[section], _label(new if one is new[place] else old, place)


def _other_reason(
    prompt: Prompt, base: Prompt, shared: int, rule: CacheRule
) -> tuple[str, str | None] | None:
    """The reason why an unchanged prompt was not read."""
    before, now = base.served, prompt.served
    assert before is not None
    assert now is not None
    if base.cached_ns > prompt.started_ns:
        return "parallel_request", None
    olds, news = base.marks[:shared], prompt.marks
    marks = [place for place, mark in enumerate(olds) if mark]
    if marks:
        for place in marks:
            if news[place] and news[place] != olds[place]:
                return "marker_changed", _label(base.segments, place)
        if rule.lookback and not any(news[marks[-1] : marks[-1] + rule.lookback + 1]):
            return "marker_changed", _label(base.segments, marks[-1])
    if (before.gateway, before.provider) != (now.gateway, now.provider):
        return "other_provider", None
    if _differ(before.inference_region, now.inference_region):
        return "other_region", None
    lifetimes = lifetimes_s(rule, olds)
    if lifetimes and prompt.started_ns - base.started_ns > min(lifetimes) * 10**9:
        return "expired", None
    if _differ(before.server_instance, now.server_instance):
        return "other_instance", None
    return None


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


def _label(segments: list[Segment], place: int) -> str:
    """Name of a segment, with its number in its part of the prompt, from 0."""
    one, section = segments[place], _section(segments, place)
    if section == "message":
        return f"message {one.message}"
    if section == "model":
        return section
    number = "" if section == "settings" else f" {sum(other.kind == section for other in segments[:place])}"
    return f"{section}{number}" + (f" {identifiers.name(one.name)}" if one.name else "")
