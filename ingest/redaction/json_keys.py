"""Allow-list of JSON keys, and how much of a key and of its value is kept.

The list has the members that analytics reads, and no others (checked by `tests/ingest/redaction/test_json_keys.py`). An
unknown key is filled with everything under it.

Words follow the policy of `streamgauge.ingest.identifiers`: a word is kept whole or not at all. Where a read cuts a word, its end is
unknown: its start is kept up to anything that may become a key.
"""

from __future__ import annotations

import re
from bisect import bisect
from enum import IntEnum

import msgspec

from streamgauge.ingest import identifiers
from streamgauge.ingest.redaction import filler


class Context(IntEnum):
    """How the keys of an object are treated."""

    NAMED = 0
    """Keys of the allow-list."""
    NUMBERS = 1
    """Counts and times under server-specific names: names and numbers are kept."""
    TEXT = 2
    """Keys of the allow-list, but every value is filled."""
    CONTENT = 3
    """Unknown keys: everything is filled."""
    REPEATED = 4
    """As NAMED. Text may repeat earlier text of the stream."""


class Keep(IntEnum):
    """Kind of string that is kept (`PATTERNS`)."""

    NOTHING = 0
    NUMBER = 1
    """Numbers sent as text: digits, sign, point, exponent, commas."""
    WORD = 2
    """An identifier (`streamgauge.ingest.identifiers`)."""
    NAME = 3
    """A name (`streamgauge.ingest.identifiers`)."""
    PATH = 4
    """A JSON path."""
    TITLE = 9
    """The type of an error: a word or a reason phrase of HTTP."""
    MEDIA_TYPE = 12
    """A name with parameters: `audio/L16;rate=24000`."""
    DURATIONS = 13
    """As in the header Server-Timing, without descriptions: `queue;dur=1.5, prefill;dur=8`."""


class Rule(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a member's value."""

    string: Keep
    number: bool
    inner: Context
    """Context of an object or array."""


TEXT = Rule(Keep.NOTHING, False, Context.NAMED)
CONTENT = Rule(Keep.NOTHING, False, Context.CONTENT)
_WORD = Rule(Keep.WORD, True, Context.NAMED)
_TITLE = Rule(Keep.TITLE, True, Context.NAMED)
_NAME = Rule(Keep.NAME, True, Context.NAMED)
_ID = Rule(Keep.WORD, False, Context.NAMED)
_COUNT = Rule(Keep.NUMBER, True, Context.NAMED)
NUMBERS = Rule(Keep.NUMBER, True, Context.NUMBERS)
WORDS_AMONG_NUMBERS = Rule(Keep.NAME, True, Context.NUMBERS)
_OUTPUT = Rule(Keep.NOTHING, False, Context.REPEATED)
_CODE = Rule(Keep.NOTHING, False, Context.TEXT)
_PATH = Rule(Keep.PATH, False, Context.CONTENT)
_MEDIA_TYPE = Rule(Keep.MEDIA_TYPE, False, Context.CONTENT)
_DURATIONS = Rule(Keep.DURATIONS, False, Context.CONTENT)

_GROUPS: tuple[tuple[Rule, str], ...] = (
    (_WORD, "id jsonrpc system_fingerprint backend_host backend-host"),
    (_NAME, """
     model model_id modelVersion model_instance_id
     object event event_type role status stop_reason stopReason completionReason finish_reason finishReason done_reason
     stop_type blockReason
     reason code error_code errorCode __type tpe errorcode name tool provider output_audio_format
     method native_finish_reason status_code service_tier modality inference_geo
     search_context_size trafficType serviceTier speed ttl
     """),
    (_TITLE, "type title error_type"),
    (_ID, "response_id responseId generation_id toolUseId log_id item_id call_id request_id"),
    (_COUNT, """
     index output_index content_index contentBlockIndex summary_index
     is_finished is_error isError done stop special thought willContinue stopped_eos stopped_limit
     generated_token_count input_token_count input_tokens totalTokens generated_tokens input_length tokens_evaluated tokens_predicted
     total_duration load_duration prompt_eval_count prompt_eval_duration eval_count eval_duration
     progress load_time_seconds load_time created_at id_slot success
     """),
    (NUMBERS, """
     usage usageMetadata stats timings perf_metrics time_info timing metrics meta meta_info billed_units prompt_progress
     amazon-bedrock-invocationMetrics rate_limits cost tool_usage
     """),
    (TEXT, """
     start toolUse reasoningContent reasoningText generation outputText
     content text thinking delta partial_json completion reasoning reasoning_content reasoning_text reasoning_details
     refusal message messages msg Message tool_plan summary outputs output_ids response result results item
     choices candidates parts transcript value stringValue numberValue boolValue generated_text data audio error errors
     Error fault detail details description error_message error_msg errorMessage faultstring last_error loc base_resp status_msg
     status_details format
     content_block content_part function function_call functionCall custom tool_calls tool_call_delta
     step steps step_details code_interpreter generations interaction inlineData promptFeedback partialArgs
     logprobs token tokens token_ids x_groq nvext obfuscation
     image images partial_image_b64 action groundingMetadata
     """),
    (_OUTPUT, "output"),
    (_CODE, "executableCode"),
    (CONTENT, """
     arguments args input parameters search_results prompt_filter_results content_filter_results webSearchQueries
     param instance path timestamp requestId statusCode
     """),
    (_PATH, "jsonPath"),
    (_MEDIA_TYPE, "mimeType"),
    (_DURATIONS, "Server-Timing"),
)  # fmt: skip

_REQUEST_GROUPS: tuple[tuple[Rule, str], ...] = (
    (_NAME, """
     model modelId reasoning_effort effort service_tier serviceTier speed inference_geo type reasoning response_format method
     """),
    (_WORD, "jsonrpc id"),
    (_COUNT, """
     generate stream temperature top_p p top_k k max_tokens max_completion_tokens max_output_tokens max_new_tokens
     max_tokens_to_sample n seed random_seed frequency_penalty presence_penalty
     """),
    (NUMBERS, "stream_options generationConfig options parameters"),
    (CONTENT, "stop stop_sequences tools functions"),
)  # fmt: skip


REPEATED = frozenset({b"text", b"content", b"reasoning_content"})
"""Members of `output` whose text may be cumulative; `text` also at the root of a payload. Readers detect cumulative text by its
beginning, so filler must preserve equal beginnings."""


class KeyRules(msgspec.Struct, frozen=True):
    """Rules by key."""

    rules: dict[bytes, Rule]
    ordered: list[bytes]


def _rules_of(groups: tuple[tuple[Rule, str], ...]) -> KeyRules:
    rules = {name.encode(): rule for rule, names in groups for name in names.split()}
    return KeyRules(rules, sorted(rules))


RESPONSE = _rules_of(_GROUPS)
REQUEST = _rules_of(_REQUEST_GROUPS)


_RUNS = {Keep.NUMBER: (rb"-+0-9.,eE", 64), Keep.PATH: (rb"A-Za-z0-9_$.\[\]", 256)}
"""Allowed bytes, as the inside of a character class, and their maximum number."""
_DURATION = f"(?:(?!{identifiers.KEY})[A-Za-z0-9_.-]{{1,32}};dur=[0-9.]{{1,20}}(?:, ?)?)"
_WORDS = {
    Keep.WORD: (identifiers.IDENTIFIER, identifiers.START_OF_IDENTIFIER),
    Keep.NAME: (identifiers.NAME, identifiers.START_OF_NAME),
    Keep.TITLE: (identifiers.NAME, identifiers.START_OF_NAME),
    Keep.MEDIA_TYPE: (identifiers.MEDIA_TYPE, identifiers.START_OF_MEDIA_TYPE),
    Keep.DURATIONS: (
        f"{_DURATION}{{1,32}}+", f"{_DURATION}*+(?:{identifiers.START_OF_NAME}(?:;(?:d(?:u(?:r=?)?)?)?)?)?"
    ),
}  # fmt: skip
"""Patterns of a word and of a part of it."""
_MAX_KEPT_BYTES = {
    **{keep: most for keep, (_, most) in _RUNS.items()},
    **dict.fromkeys(_WORDS, identifiers.MAX_CHARS),
    Keep.DURATIONS: 1024,
}
WORDS = frozenset(_WORDS)
NO_WORD = b"?"
"""Filler of words that are not kept. No identifier has it, so readers still see that the value is none."""
PATTERNS: dict[int, bytes] = {
    **{keep: b"[%b]{0,%d}+" % run for keep, run in _RUNS.items()},
    **{keep: b"(?:%b)?+" % whole.encode() for keep, (whole, _) in _WORDS.items()},
}
"""A complete string that is kept. The caller checks what follows."""
_WHOLE = {keep: re.compile(pattern) for keep, pattern in PATTERNS.items()}
_START = {keep: re.compile(b"[%b]*+" % alphabet) for keep, (alphabet, _) in _RUNS.items()} | {
    keep: re.compile(start.encode()) for keep, (_, start) in _WORDS.items()
}
_REASON_PHRASES = frozenset(phrase.encode() for phrase in identifiers.REASON_PHRASES)


def kept_of_start(value: bytes, keep: Keep, before: bytes = b"") -> int:
    """Number of bytes kept of a part of a string that a read cuts. `before`: the part in earlier reads, which was kept."""
    found = _START[keep].match(before + value, 0, _MAX_KEPT_BYTES[keep])
    assert found is not None
    return max(0, found.end() - len(before))


def kept_of_whole(value: bytes, keep: Keep) -> int:
    """Number of bytes kept of the inside of a complete string."""
    if keep not in WORDS:
        return kept_of_start(value, keep)
    kept = _WHOLE[keep].fullmatch(value) is not None or (keep is Keep.TITLE and value in _REASON_PHRASES)
    return len(value) if kept else 0


# Names of counters differ from server to server and say what the numbers are, so they are kept by their form.
MAX_NUMBER_KEY_BYTES = 64
_NUMBER_KEY = re.compile(rb"[A-Za-z0-9_.$@-]*+")
_NAMES = b"abcdefghijklmnopqrstuvwxyz0123456789"


def kept_length_of_key(key: bytes, context: int, rules: KeyRules, *, whole: bool = False) -> int:
    """Number of bytes kept of a key (or its start, unless `whole`): the common prefix with an allow-listed key.

    Among numbers, a whole key is kept or filled completely.
    """
    if context == Context.CONTENT:
        return 0
    if context == Context.NUMBERS:
        found = _NUMBER_KEY.match(key, 0, MAX_NUMBER_KEY_BYTES)
        assert found is not None
        return found.end() if found.end() == len(key) or not whole else 0
    # In a sorted list, the longest common prefix is with one of the two neighbours. The prefix of a key that a read
    # cuts must be kept, because the rest may make it a known one.
    index = bisect(rules.ordered, key)
    return max(_common_prefix(key, near) for near in rules.ordered[max(0, index - 1) : index + 1])


def filled_key(run: bytes, start: int, kept: int, number: int) -> bytes:
    """Fill the bytes of a key from `start` on, after its `kept` bytes. `number` makes a key of sufficient length unique."""
    out = bytearray(filler.plain(run))
    for at, byte in enumerate(out):
        position = start + at - kept
        if position < 0:
            out[at] = run[at]
        # Filled keys of one object must differ: JSON readers keep the last of equal keys, and members would disappear.
        elif byte == 0x78:
            out[at] = _NAMES[number // 36 ** min(position, 12) % 36]
    return bytes(out)


def _common_prefix(first: bytes, second: bytes) -> int:
    """Length of the common prefix."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
