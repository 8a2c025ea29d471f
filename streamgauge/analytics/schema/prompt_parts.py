"""Parts of a prompt, in Python and as SQL over the table `prompt_segments`."""

from __future__ import annotations

PROMPT_WEIGHTS = {
    "model": 0, "settings": 0, "tool": 1, "system": 1, "text": 1, "image": 0.03, "audio": 0.1, "file": 0.1, "reasoning": 1,
    "tool_call": 1, "tool_result": 1, "other": 1,
}  # fmt: skip
"""Kind of segment → its tokens per byte as a multiple of those of text. A screenshot of 200 KB in base64 has about 1,500 tokens, a page
of a PDF of 100 KB about 2,500. The name of the model and the parameters are not in the prompt."""
PROMPT_PARTS = {
    "tools_bytes": "tool",
    **{f"{kind}_bytes": kind for kind in PROMPT_WEIGHTS if kind not in ("model", "settings", "tool")},
}
"""Column of `prompt_segments` with the bytes of a kind → the kind."""
WEIGHTED_BYTES = (
    f"({' + '.join(f'{PROMPT_WEIGHTS[kind]:g} * {column}' for column, kind in PROMPT_PARTS.items())})::DOUBLE"
)
