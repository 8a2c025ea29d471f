"""Meanings of the finish reasons of the dialects, in Python and as SQL over the table `streams`."""

from __future__ import annotations

from streamgauge.analytics.schema.dimensions import is_one_of

STOP, LENGTH, TOOLS, FILTER = "stop", "length", "tool_calls", "content_filter"
_MEANINGS: dict[str, tuple[str, ...]] = {
    word: meanings
    for words, meanings in (
        ("stop end_turn stop_sequence eos eos_token eosfound end done complete finish turn_complete silence", (STOP,)),
        ("length max_tokens max_output_tokens model_length limit", (LENGTH,)),
        ("tool_calls tool_use tool_call function_call", (TOOLS,)),
        ("content_filter content_filtered safety refusal guardrail_intervened recitation blocklist prohibited_content spii",
         (FILTER,)),
        ("completed", (STOP, TOOLS)),
        ("incomplete", (LENGTH, FILTER)),
    )
    for word in words.split()
}  # fmt: skip
"""Meanings by finish reason in lower case, the most frequent one first."""
INTERRUPTED = ("turn_detected", "client_cancelled", "cancelled", "interrupted")
"""Finish reasons of an answer that the user or the client of a voice API interrupted."""
_GEMINI_STOP = frozenset({STOP, TOOLS})
"""Gemini's STOP also ends a response with tool calls."""

FINISH = (
    "CASE "
    + " ".join(
        f"WHEN {is_one_of('lower(finish_reason)', [word for word, found in _MEANINGS.items() if found[0] == meaning])} THEN '{meaning}'"
        for meaning in (STOP, LENGTH, TOOLS, FILTER)
    )
    + " ELSE finish_reason END"
)
"""SQL of the meaning of a stream's finish reason, or the reason itself if no meaning is known."""


def meanings(reason: str) -> frozenset[str]:
    """What a finish reason may mean: the reason itself if no meaning is known."""
    return _GEMINI_STOP if reason == "STOP" else frozenset(_MEANINGS.get(reason.lower(), (reason,)))
