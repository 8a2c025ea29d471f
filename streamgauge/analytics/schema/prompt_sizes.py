"""Sizes of prompts: bytes and weights of their parts, also as SQL over the table `prompt_segments`, and classes by input tokens."""

from __future__ import annotations

PROMPT_WEIGHTS = {
    "model": 0, "settings": 0, "tool": 1, "system": 1, "text": 1, "image": 0.03, "audio": 0.1, "file": 0.1, "reasoning": 1,
    "tool_call": 1, "tool_result": 1, "other": 1,
}  # fmt: skip
"""Kind of segment → tokens per byte, relative to text. A screenshot of 200 KB in base64 has about 1,500 tokens, a PDF page of 100 KB about
2,500. The name of the model and the parameters are not in the prompt."""
BYTES_COLUMNS = {kind: f"{kind}_bytes" for kind in PROMPT_WEIGHTS} | {
    "model": "settings_bytes",
    "tool": "tools_bytes",
}
"""Kind of segment → the column with its bytes in the whole prompt."""
_WEIGHTED = (f"{weight:g} * {BYTES_COLUMNS[kind]}" for kind, weight in PROMPT_WEIGHTS.items() if weight)
WEIGHTED_BYTES = f"({' + '.join(_WEIGHTED)})::DOUBLE"
TOKENS_PER_PROMPT_BYTE = 0.25
"""Default for models without reported tokens."""
_PARTS = {
    "tools": ("tool",), "system": ("system",), "history": ("text", "reasoning", "tool_call", "other"), "tool results": ("tool_result",),
    "images": ("image",), "files": ("audio", "file"),
}  # fmt: skip
CONTEXT_PARTS = tuple(_PARTS)
"""Parts of a prompt, in the order in which charts stack them."""
PARTS_OF_PROMPT = ", ".join(
    f"{{'part': '{part}', 'bytes': {' + '.join(BYTES_COLUMNS[kind] for kind in kinds)}, "
    f"'weight': {PROMPT_WEIGHTS[kinds[0]]:g}::DOUBLE}}"
    for part, kinds in _PARTS.items()
)
"""SQL of a struct for each part. Kinds of one part have the same weight."""
_BELOW = {256: "< 256", 1_024: "256 – 1 k", 4_096: "1 k – 4 k", 16_384: "4 k – 16 k", 65_536: "16 k – 64 k"}
PROMPT_SIZES = (*_BELOW.values(), "≥ 64 k", "unknown")
"""Classes of prompts by their input tokens, in order."""
_CASES = " ".join(f"WHEN input_tokens < {tokens} THEN '{name}'" for tokens, name in _BELOW.items())
PROMPT_SIZE = f"CASE WHEN input_tokens IS NULL THEN 'unknown' {_CASES} ELSE '≥ 64 k' END"
"""SQL of the class of a prompt, over `streams`."""
