"""The segments of prompts through redaction and WebSockets, and that no text of a prompt leaves with them."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.records import Request, encode
from streamgauge.ingest.redaction.record_redactor import Redactor
from tests.analytics.sockets import SOCKET, Sent, events, recorded
from tests.analytics.stream_records import opened
from tests.prompt_bodies import (
    DIALECTS,
    KEY,
    MUTATIONS,
    encoded,
    first_difference,
    prompt,
    rendered,
    segments,
)

WORDS = [f"zwiebel{n:03d}" for n in range(200)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_word_of_a_prompt_leaves(dialect: str) -> None:
    """Neither by the segments, nor by a redacted record. Names of tools and models are no texts."""
    rng = random.Random(dialect)
    words = iter(WORDS * 9)

    def planted(old: str) -> str:
        return f"{next(words)} {old} {next(words)}"

    for long in (False, True):
        one = prompt(rng, long=long)
        parts = {"text", "reasoning", "tool_result"}
        messages = tuple(
            replace(message, parts=tuple(replace(part, text=planted(part.text)) if part.kind in parts else part
                                         for part in message.parts))
            for message in one.messages
        )  # fmt: skip
        one = replace(
            one, messages=messages, system=tuple(map(planted, one.system)), ttl=f"my {next(words)}", tool_choice=planted("x"),
            tools=tuple((name if n else f"my {next(words)}", planted(description)) for n, (name, description) in enumerate(one.tools)),
        )  # fmt: skip
        data = encoded(rendered(one, dialect)[0], rng)
        walk = CondensedBody(KEY)
        condensed = walk.feed(data)
        found = encode(Request("s", 1, b"", False, anatomy=walk.anatomy))
        assert not [word for word in WORDS if word.encode() in found]
        sent = Request(
            "s", 1, condensed if long else data, False, condensed=long, anatomy=walk.anatomy if long else None
        )
        redactor = Redactor(conversation=ConversationReader(KEY), key=KEY)
        [_, shipped] = redactor.redact([opened("s"), sent])
        assert isinstance(shipped, Request)
        assert shipped.conversation is not None
        assert shipped.conversation.anatomy is not None
        assert walk.anatomy is not None
        assert shipped.conversation.anatomy.segments == walk.anatomy.segments
        assert not [word for word in WORDS if word.encode() in encode(shipped)]


@pytest.mark.parametrize("long", [False, True])
def test_messages_of_a_websocket_have_the_segments_of_their_json(long: bool) -> None:
    rng = random.Random(3)
    for mutation in ("edited message", "order of tools", "date in the system text"):
        one = prompt(rng, long=long)
        (body, parts), (changed, others) = (
            rendered(p, "openai_responses") for p in (one, MUTATIONS[mutation](rng, one))
        )
        messages = [
            json.dumps({"type": "response.create", **b, "previous_response_id": "resp_1"}).encode()
            for b in (body, changed)
        ]
        sent: list[Sent] = []
        for number, message in enumerate(messages):
            sent.append((2 * number + 1, "client", message))
            sent += [(2 * number + 2, "server", event) for event in events(f"r{number}", ["a"])]
        assembler = Assembler(client_key=KEY)
        assembler.feed("w0", 0, recorded(sent))
        answers = sorted(
            (a for a in assembler.take_finished() if a.stream_id != SOCKET), key=lambda a: a.started_wall_ns
        )
        found = [answer.conversation.anatomy.segments for answer in answers]
        assert found == [segments(message) for message in messages]
        assert first_difference(*found) == first_difference(parts, others)
