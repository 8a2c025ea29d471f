"""Allow-list of JSON keys, and how much of their values is kept.

The list has the members that analytics reads, and no others (checked by `tests/ingest/redaction/test_key_rules.py`). An
unknown key is filled with everything under it.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


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
    """Kind of string that is kept (`kept_text`)."""

    NOTHING = 0
    NUMBER = 1
    """A number sent as text: digits, sign, point, exponent."""
    WORD = 2
    """An identifier (`streamgauge.ingest.identifiers`)."""
    NAME = 3
    """A name (`streamgauge.ingest.identifiers`)."""
    PATH = 4
    """A JSON path."""
    TITLE = 9
    """The type of an error: a word or a reason phrase of HTTP."""


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

_GROUPS: tuple[tuple[Rule, str], ...] = (
    (_WORD, "id jsonrpc system_fingerprint backend_host backend-host"),
    (_NAME, """
     model model_id modelVersion model_instance_id
     object event event_type role status stop_reason stopReason completionReason finish_reason finishReason done_reason
     stop_type blockReason
     reason code error_code errorCode __type tpe errorcode name tool provider mimeType
     method native_finish_reason status_code service_tier modality inference_geo
     search_context_size trafficType serviceTier
     """),
    (_TITLE, "type title error_type"),
    (_ID, "response_id responseId generation_id toolUseId log_id item_id call_id request_id"),
    (_COUNT, """
     index output_index content_index contentBlockIndex summary_index
     is_finished is_error isError done stop special thought willContinue stopped_eos stopped_limit
     generated_token_count input_token_count generated_tokens input_length tokens_evaluated tokens_predicted
     total_duration load_duration prompt_eval_count prompt_eval_duration eval_count eval_duration
     progress load_time_seconds load_time created_at id_slot
     """),
    (NUMBERS, """
     usage usageMetadata stats timings perf_metrics time_info timing metrics meta meta_info billed_units prompt_progress
     amazon-bedrock-invocationMetrics
     """),
    (TEXT, """
     start toolUse reasoningContent reasoningText generation outputText
     content text thinking delta partial_json completion reasoning reasoning_content reasoning_text reasoning_details
     refusal message messages msg Message tool_plan summary outputs output_ids response result results item
     choices candidates parts transcript value stringValue numberValue boolValue generated_text data audio error errors
     Error fault detail details description error_message error_msg errorMessage faultstring last_error loc base_resp status_msg
     content_block content_part function function_call functionCall custom tool_calls tool_call_delta
     step steps step_details code_interpreter generations interaction inlineData promptFeedback partialArgs
     logprobs token tokens token_ids x_groq nvext obfuscation
     image images partial_image_b64
     """),
    (_OUTPUT, "output"),
    (_CODE, "executableCode"),
    (CONTENT, """
     arguments args input parameters search_results prompt_filter_results content_filter_results
     """),
    (_PATH, "jsonPath"),
)  # fmt: skip

_REQUEST_GROUPS: tuple[tuple[Rule, str], ...] = (
    (_NAME, "model modelId reasoning_effort effort service_tier type reasoning response_format method"),
    (_WORD, "jsonrpc id"),
    (_COUNT, """
     stream temperature top_p p top_k k max_tokens max_completion_tokens max_output_tokens max_new_tokens
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
