"""OpenAI Realtime: the items and deltas of Responses with ids of events, speech with its transcript, and one end."""

from __future__ import annotations

from base64 import b64encode
from random import Random
from typing import Any

from streamgauge.simulator.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.response_writer import BodyPart, Usage
from streamgauge.simulator.response_writers.responses import Responses

BYTES_PER_S = {"audio/pcm": 48_000, "audio/pcmu": 8_000, "audio/pcma": 8_000}
"""Audio format → bytes of one second."""
TOKEN_MS = 250
"""Length of a token when it is spoken."""
RATE_LIMITS = {"requests": 1_000, "tokens": 50_000}


class Realtime(Responses):
    """Function calls, and text or speech. `response.done` ends every response."""

    vendor = "realtime"
    has_refusals = False
    reports_hidden_reasoning = False
    final = "response.done"

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.audio_format: str | None = None
        """A key of `BYTES_PER_S`, None for text."""
        self._sound = Random(plan.seed)  # noqa: S311

    def _event(self, kind: str, piece: Piece | None = None, **body: Any) -> BodyPart:
        self.sequence += 1
        for member in ("logprobs", "obfuscation"):
            body.pop(member, None)
        if "response" not in body and kind.startswith("response."):
            body["response_id"] = self.id
        return self.typed_event(kind, piece, event_id=f"event_{self.plan.token[:8]}{self.sequence}", **body)

    def _apart(self, kind: str, **body: Any) -> BodyPart:
        """An event of the conversation, which is not part of the response."""
        body_part = self._event(kind, **body)
        body_part.events = 0
        return body_part

    def _response(self, status: str, details: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        modality = "text" if self.audio_format is None else "audio"
        return {
            "id": self.id, "object": "realtime.response", "status": status, "output": [],
            "status_details": {"type": status, **details} if details else None,
            "output_modalities": [modality], "conversation_id": "conv_" + self.plan.token[:8], "max_output_tokens": "inf",
            "audio": {"output": {"format": {"type": self.audio_format or "audio/pcm"}, "voice": "marin"}},
            "usage": None, "metadata": None, **more,
        }  # fmt: skip

    def preamble(self) -> list[tuple[float, BodyPart]]:
        limits = [
            {"name": name, "limit": limit, "remaining": limit - 1, "reset_seconds": 0.06}
            for name, limit in RATE_LIMITS.items()
        ]
        created = self._event("response.created", response=self._response("in_progress"))
        return [(0.3, created), (0.3, self._event("rate_limits.updated", rate_limits=limits))]

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        if self.audio_format is None or piece.kind != "text":
            return super().write_piece(piece, last)
        spoken = Piece(kind="audio", text=piece.text, tokens=piece.tokens)
        body_parts = super().write_piece(spoken, last)
        length_ms = TOKEN_MS * piece.tokens
        sound = b64encode(self._sound.randbytes(BYTES_PER_S[self.audio_format] * length_ms // 1000)).decode()
        audio = self._event("response.output_audio.delta", spoken, **self._at, content_index=0, delta=sound)
        audio.audio_ns = length_ms * 1_000_000
        return [*body_parts, audio]

    def _open_item(self, piece: Piece) -> list[BodyPart]:
        added, *body_parts = super()._open_item(piece)
        item = self.items[-1] = {**self.items[-1], "object": "realtime.item"}
        return [added, self._apart("conversation.item.added", previous_item_id=None, item=item), *body_parts]

    def _close_item(self) -> list[BodyPart]:
        body_parts = super()._close_item()
        if body_parts:
            item = self.items[-1]
            item["content"] = [{**part, "type": "output_" + part["type"]} for part in item.get("content", ())]
            body_parts.append(self._apart("conversation.item.done", previous_item_id=None, item=item))
        return body_parts

    @staticmethod
    def _part(kind: str, text: str) -> dict[str, Any]:
        return {"type": "audio", "transcript": text} if kind == "audio" else {"type": "text", "text": text}

    def _text_done(self, kind: str, at: dict[str, Any]) -> list[BodyPart]:
        if kind != "audio":
            return super()._text_done(kind, at)
        return [
            self._event("response.output_audio.done", **at),
            self._event("response.output_audio_transcript.done", **at, transcript=self.item_text),
        ]

    def usage(self) -> tuple[dict[str, Any], Usage]:
        plan, output = self.plan, self.output_tokens
        spoken = output if self.audio_format else 0
        raw = {
            "total_tokens": plan.input_tokens + output, "input_tokens": plan.input_tokens, "output_tokens": output,
            "input_token_details": {"text_tokens": plan.input_tokens, "audio_tokens": 0, "cached_tokens": plan.cached_tokens},
            "output_token_details": {"text_tokens": output - spoken, "audio_tokens": spoken},
        }  # fmt: skip
        return raw, Usage(plan.input_tokens, output, None, plan.cached_tokens)

    def interrupted(self, reason: str) -> list[BodyPart]:
        """The end of a response that the user or the client interrupted."""
        return [*self._close_item(), self._final("cancelled", {"reason": reason}, reason)]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error = {"type": "server_error", "code": "server_error", "message": "The model failed while generating."}  # fmt: skip
        return [self._final("failed", {"error": error}, None)], "server_error"

    def socket_error(
        self, status: int, message: str, code: str | None = None
    ) -> tuple[list[BodyPart], str | None]:
        body, kind = self.http_error(status, message)
        if code is not None:  # there is no response
            return [self._event("error", error={**body["error"], "code": code})], kind
        created = self._event("response.created", response=self._response("in_progress"))
        return [created, self._final("failed", {"error": body["error"]}, None)], kind
