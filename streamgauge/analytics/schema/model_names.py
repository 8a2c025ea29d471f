"""The names of a model, as gateways write them.

A name stands for the model of another one if only what is no part of the model differs: the provider, a path or an ARN before it, the
region and version of Bedrock, the routing of OpenRouter (`:nitro`), the account of a fine-tuned model, a date. The rule removes only
what it knows: `gpt-5-mini` is never `gpt-5`, `claude-sonnet-latest` no version, and `acme/gpt-5` is not OpenAI's.
"""

from __future__ import annotations

from streamgauge.analytics.schema.sql_quoting import literal


def _any(words: str) -> str:
    return f"(?:{'|'.join(words.split())})"


_PROVIDER = _any("""
    ai21 aihubmix alibaba amazon anthropic anyscale azure azure-openai azure_ai azure_openai baseten bedrock bedrock_converse bedrock_mantle
    cerebras chatgpt cloudflare codestral cohere cohere_chat converse dashscope databricks deepinfra deepseek fireworks fireworks_ai
    friendliai gemini github github_copilot google google-ai-studio google-vertex google_ai_studio groq heroku hosted_vllm huggingface
    hyperbolic invoke lambda_ai litellm_proxy lm_studio meta meta-llama meta_llama minimax mistral mistralai moonshot moonshotai nebius
    novita nscale nvidia nvidia_nim oci ollama ollama_chat openai openrouter perplexity portkey qwen replicate sambanova snowflake
    together together_ai vercel vercel_ai_gateway vertex vertex_ai vertex_ai_beta vllm volcengine watsonx x-ai xai z-ai zai""")
_MAKER = (
    _any(
        "ai21 amazon anthropic cohere deepseek google meta minimax mistral moonshot moonshotai nvidia openai qwen writer xai zai"
    )
    + r"\."
)
"""In the names of Bedrock."""
_PREFIX = (
    rf"^(?:@?(?i:{_PROVIDER})/"
    r"|(?:us|eu|global|[a-z]{2}(?:-gov)?-[a-z]+-\d)/"
    r"|(?:projects/[^/]+/locations/[^/]+/)?publishers/[^/]+/models/|accounts/[^/]+/models/|models/|arn:[^/]*/"
    rf"|(?:apac|au|ca|eu|global|in|jp|us|us-gov)\.({_MAKER})|{_MAKER})"
)
_DATE = r"20\d\d(?:-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))"
_STEPS = (
    (r":(?:beta|exacto|floor|nitro|online|thinking)$", ""),
    (r"^(ft:[^:]+):.*$", r"\1"),
    (r"^(claude-.*\d)-v\d+(?::\w+)*$|^(.*\d)-v\d+:\d+(?::\w+)*$", r"\1\2"),
    (r"^(claude-.*\d)\.(\d.*)$", r"\1-\2"),
    (r"^(.+)@(20\d{6})$", r"\1-\2"),
    (rf"(?:[-@]{_DATE}|@default)$", ""),
)
"""Pattern and replacement of what follows a name. A dated version is tried before the model without its date."""
_MOST_PREFIXES = 4


def spellings(name: str) -> str:
    """SQL of the names that stand for the model of a name, the name as written first. Some may be equal."""
    # Each pattern is a constant: DuckDB compiles another one for each value.
    one_less = f"list_append(found, regexp_replace(found[-1], {literal(_PREFIX)}, '\\1'))"
    steps = " ".join(
        f"WHEN '{number}' THEN regexp_replace(text, {literal(pattern)}, {literal(replacement)})"
        for number, (pattern, replacement) in enumerate(_STEPS)
    )
    return f"""list_reduce({[[str(number)] for number in range(len(_STEPS))]},
        lambda found, step: found || list_transform(found[-{_MOST_PREFIXES + 1}:], lambda text: CASE step[1] {steps} END),
        list_reduce({[[""]] * _MOST_PREFIXES}, lambda found, _: {one_less}, [{name}]))"""


REQUEST_SPELLINGS, RESPONSE_SPELLINGS, OTHER_SPELLINGS = (
    spellings(f"regexp_replace({name}, ':free$', '')")
    for name in ("request_model", "response_model", "other_model")
)
"""Of the model without OpenRouter's `:free`."""
NAMES_SERVED_MODEL = """request_model IS NOT NULL AND response_model IS NOT NULL
    AND NOT starts_with(request_model, 'hashed:') AND NOT starts_with(response_model, 'hashed:')"""
"""SQL condition: the requested and the served model of a stream can be compared."""
# In a subquery, DuckDB evaluates it once for each pair of names.
IS_OTHER_MODEL = f"(SELECT NOT list_has_any({REQUEST_SPELLINGS}, {RESPONSE_SPELLINGS}))"
"""SQL condition: no name of the served model stands for the requested one."""
