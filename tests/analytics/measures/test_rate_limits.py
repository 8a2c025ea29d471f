"""The rate limits in the headers of each provider, in Gemini's errors and in Realtime's events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from streamgauge.analytics.dialects.error_bodies import error_in_body, retry_delay_in
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.measures.rate_limits import (
    Limits,
    Window,
    columns_of,
    limits_in_headers,
    limits_in_stats,
    seconds_until,
)
from streamgauge.ingest.header_fields import is_stored, recorded_value, response_field

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
AT_S = AT.timestamp()
IN_30_S = (AT + timedelta(seconds=30)).isoformat().replace("+00:00", "Z")


def limits_in(text: str) -> Limits:
    """Of headers in lines, as the tap records and analytics receives them."""
    sent = (line.split(": ", 1) for line in text.strip().splitlines())
    recorded = [response_field(name.strip().lower().encode(), value.encode()) for name, value in sent]
    kept = [(name, recorded_value(name, value)) for name, value in filter(None, recorded)]
    assert len(kept) == len(recorded), "a field is not recorded"
    assert all(is_stored(name) for name, _ in kept)
    return limits_in_headers(kept, AT_S)


def test_openai_and_azure_report_durations_until_the_bucket_is_full() -> None:
    found = limits_in("""
        x-ratelimit-limit-requests: 5000
        x-ratelimit-remaining-requests: 4999
        x-ratelimit-reset-requests: 12ms
        x-ratelimit-limit-tokens: 160000
        x-ratelimit-remaining-tokens: 159976
        x-ratelimit-reset-tokens: 6m0s
    """)
    assert found.requests == Window("requests", 5000, 4999, pytest.approx(0.012))
    assert found.tokens == Window("tokens", 160000, 159976, 360)


def test_groq_reports_hours_and_fractions() -> None:
    found = limits_in("""
        x-ratelimit-limit-requests: 14400
        x-ratelimit-remaining-requests: 14370
        x-ratelimit-reset-requests: 1h2m59.56s
        retry-after: 2
    """)
    assert found.requests.reset_s == pytest.approx(3779.56)
    assert found.retry_after_s == 2


def test_anthropic_reports_instants_and_the_scarcest_of_input_output_and_all_tokens_counts() -> None:
    found = limits_in(f"""
        anthropic-ratelimit-requests-limit: 50
        anthropic-ratelimit-requests-remaining: 49
        anthropic-ratelimit-requests-reset: {IN_30_S}
        anthropic-ratelimit-tokens-limit: 38000
        anthropic-ratelimit-tokens-remaining: 30000
        anthropic-ratelimit-tokens-reset: {IN_30_S}
        anthropic-ratelimit-input-tokens-limit: 30000
        anthropic-ratelimit-input-tokens-remaining: 12000
        anthropic-ratelimit-input-tokens-reset: {IN_30_S}
    """)
    assert found.requests == Window("requests", 50, 49, 30)
    assert found.tokens == Window("input-tokens", 30000, 12000, 30)


UNIFIED = f"""
    anthropic-ratelimit-unified-status: allowed
    anthropic-ratelimit-unified-5h-status: allowed
    anthropic-ratelimit-unified-5h-utilization: 0.42
    anthropic-ratelimit-unified-5h-reset: {AT_S + 600:.0f}
    anthropic-ratelimit-unified-7d-utilization: 0.31
    anthropic-ratelimit-unified-representative-claim: five_hour
    anthropic-ratelimit-unified-fallback-percentage: 0.5
"""


def test_utilization_is_the_share_that_is_used() -> None:
    found = limits_in(UNIFIED)
    assert found.quota == Window("unified-5h", 1, pytest.approx(0.58), 600)
    assert columns_of(found, 5) == {
        "quota": "unified-5h",
        "quota_used": pytest.approx(0.42),
        "quota_reset_ns": 600_000_000_005,
    }


def test_utilization_above_one_of_a_429_is_a_share() -> None:
    found = limits_in(UNIFIED.replace("0.42", "1.04").replace("allowed", "rejected"))
    assert found.quota.remaining == pytest.approx(-0.04)


def test_one_utilization_in_percent_makes_all_of_the_response_percentages() -> None:
    found = limits_in(UNIFIED.replace("0.42", "42").replace("0.31", "1.0"))
    assert found.quota == Window("unified-5h", 1, pytest.approx(0.58), 600)


def test_there_is_no_quota_while_extra_usage_is_in_use() -> None:
    found = limits_in(UNIFIED + "anthropic-ratelimit-unified-overage-in-use: true")
    assert found.quota == Window()


def test_codex_reports_percentages_also_below_one() -> None:
    found = limits_in(f"""
        x-codex-primary-used-percent: 0.5
        x-codex-primary-window-minutes: 300
        x-codex-primary-reset-at: {AT_S + 60:.0f}
        x-codex-secondary-used-percent: 0.9
        x-codex-secondary-reset-after-seconds: 77
        x-codex-plan-type: pro
    """)
    assert found.quota == Window("codex-secondary", 1, pytest.approx(0.991), 77)


def test_mistral_and_cerebras_name_their_windows() -> None:
    found = limits_in("""
        x-ratelimit-limit-req-minute: 720
        x-ratelimit-remaining-req-minute: 717
        x-ratelimit-limit-tokens-minute: 5000000
        x-ratelimit-remaining-tokens-minute: 4999911
        x-ratelimit-remaining-tokens-month: 10
        x-ratelimit-limit-tokens-month: 100
        x-ratelimit-tokens-query-cost: 52
        x-ratelimit-limit-requests-day: 14400
        x-ratelimit-remaining-requests-day: 14300
        x-ratelimit-reset-requests-day: 33011.382867
    """)
    assert found.requests == Window("requests-day", 14400, 14300, pytest.approx(33011.382867))
    assert found.tokens == Window("tokens-month", 100, 10)


def test_mistrals_limit_by_size_is_of_tokens() -> None:
    found = limits_in("ratelimitbysize-limit: 100\nratelimitbysize-remaining: 7\nratelimitbysize-reset: 7")
    assert (found.requests, found.tokens) == (Window(), Window("tokens", 100, 7, 7))


def test_openrouter_reports_the_reset_in_unix_milliseconds() -> None:
    found = limits_in(f"""
        X-RateLimit-Limit: 20
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: {(AT_S + 5) * 1000:.0f}
    """)
    assert found.requests == Window("", 20, 0, 5)


def test_headers_that_litellm_copies_from_its_provider_are_windows_of_their_own() -> None:
    found = limits_in("""
        x-ratelimit-limit-tokens: 100
        x-ratelimit-remaining-tokens: 60
        llm_provider-x-ratelimit-limit-tokens: 1000
        llm_provider-x-ratelimit-remaining-tokens: 50
        llm_provider-anthropic-ratelimit-requests-limit: 9
        llm_provider-anthropic-ratelimit-requests-remaining: 8
    """)
    assert found.tokens == Window("llm_provider-tokens", 1000, 50)
    assert found.requests == Window("llm_provider-requests", 9, 8)


def test_the_draft_of_the_ietf_has_pairs_or_three_fields() -> None:
    assert limits_in("ratelimit: limit=100, remaining=50, reset=30").requests == Window("", 100, 50, 30)
    three = "ratelimit-limit: 100, 100;w=60\nratelimit-remaining: 40\nratelimit-reset: 9"
    assert limits_in(three).requests == Window("", 100, 40, 9)


def test_the_draft_of_the_ietf_names_policies() -> None:
    found = limits_in("""
        RateLimit: "default";r=50;t=30
        RateLimit-Policy: "default";q=100;w=60
    """)
    assert found == Limits(requests=Window("default", 100, 50, 30))
    # The scarcest of several policies. Of two names, Hugging Face's second one is that of the limit.
    several = limits_in("""
        ratelimit-policy: "fixed window";"api";q=500;w=300, "daily";q=1000;w=86400;qu="requests", "tokens-per-min";q=900;w=60
        ratelimit: "api";r=400;t=200, daily;r=10;t=9, "tokens-per-min";r=1;t=2
    """)
    assert several == Limits(Window("daily", 1000, 10, 9), Window("tokens-per-min", 900, 1, 2))
    assert limits_in('ratelimit: "a";r=5\nratelimit-policy: "a";q=9;qu="content-bytes"') == Limits()
    assert limits_in('ratelimit: "a";r=5').requests == Window("a", None, 5)
    assert limits_in("ratelimit-policy: 100;w=60") == limits_in("ratelimit: ,;=") == Limits()


def test_partition_keys_of_the_draft_and_names_that_are_keys_are_not_recorded() -> None:
    secret = "sk-proj-" + "a1B2" * 8
    for value in ('"default";r=50;t=30;pk=:c2VjcmV0dXNlcg==:', f'"default";r=50;t=30;pk=:{secret}:'):
        assert recorded_value("ratelimit", value).startswith('"default";r=50;t=30;hashed:')
    for value in (f'"{secret}";r=5;t=3', '"what my customer said";r=5'):
        assert recorded_value("ratelimit", value).startswith("hashed:")
    assert limits_in('ratelimit: "default";r=50;t=30;pk=:c2VjcmV0:').requests == Window(
        "default", None, 50, 30
    )


def test_together_has_fields_of_its_own_for_tokens() -> None:
    found = limits_in("""
        x-ratelimit-limit: 10
        x-ratelimit-remaining: 9
        x-ratelimit-reset: 1
        x-tokenlimit-limit: 3000
        x-tokenlimit-remaining: 2000
    """)
    assert (found.requests, found.tokens) == (Window("", 10, 9, 1), Window("tokens", 3000, 2000))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        (format_datetime(AT + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(AT - timedelta(seconds=90), usegmt=True), 0),
        ("1m6.5s", 66.5),
        ("-1", None),
        ("soon", None),
        ("9999999d", None),
        ("2026-13-45", None),
        ("", None),
    ],
)
def test_resets_and_retries_have_several_forms(text: str, seconds: float | None) -> None:
    assert seconds_until(text, AT_S) == seconds


def test_retry_after_in_milliseconds_is_more_exact() -> None:
    assert limits_in("retry-after: 2\nretry-after-ms: 1500").retry_after_s == 1.5


def test_impossible_values_are_unknown() -> None:
    found = limits_in("""
        x-ratelimit-limit-requests: -1
        x-ratelimit-remaining-requests: -1
        x-ratelimit-limit-tokens: 0
        x-ratelimit-remaining-tokens: 0
        x-ratelimit-limit-images: 9
        x-ratelimit-remaining-images: 9
    """)
    assert found == Limits()
    assert columns_of(found, 0) == {}
    for impossible in ("9" * 400, "999999999", "-1"):
        name = "anthropic-ratelimit-unified-5h-utilization"
        assert limits_in(f"{name}: {impossible}") == Limits()
        both = limits_in(f"anthropic-ratelimit-unified-7d-utilization: 0.5\n{name}: {impossible}")
        assert both.quota.remaining == 0.5
    assert limits_in("retry-after-ms: -5\nretry-after: 7").retry_after_s == 7


def test_windows_of_two_vendors_are_not_joined() -> None:
    found = limits_in("""
        x-ratelimit-remaining-requests: 5
        anthropic-ratelimit-requests-limit: 4000
        anthropic-ratelimit-requests-remaining: 3990
    """)
    assert found.requests[1:3] == (4000, 3990)


def test_realtime_reports_its_limits_in_an_event() -> None:
    sent = {"tokens": {"limit": 20000, "remaining": 15000, "reset_seconds": 15}, "requests": {"limit": 100}}
    found = limits_in_stats(stats_of("rate_limits", sent))
    assert found.tokens == Window("tokens", 20000, 15000, 15)
    assert columns_of(found, 1_000) == {
        "tokens_limit": 20000,
        "tokens_remaining": 15000,
        "tokens_reset_ns": 15_000_001_000,
    }


def test_gemini_states_the_delay_in_the_error() -> None:
    body = b"""[{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}]}}]"""
    error = error_in_body(body)
    assert error is not None
    assert retry_delay_in(error.raw) == pytest.approx(34.074824224)
    assert retry_delay_in("text") is None
    assert retry_delay_in({"details": [{"retryDelay": 3}, "x"]}) is None
