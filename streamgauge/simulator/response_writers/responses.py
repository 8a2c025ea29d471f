"""OpenAI Responses: numbered events add and complete items and parts; the final event repeats the whole response."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from streamgauge.simulator.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage

_DELTAS: dict[str, tuple[str, dict[str, Any]]] = {
    "tool_arguments": ("response.function_call_arguments.delta", {}),
    "reasoning": ("response.reasoning_summary_text.delta", {"summary_index": 0}),
    "refusal": ("response.refusal.delta", {"content_index": 0}),
    "audio": ("response.output_audio_transcript.delta", {"content_index": 0}),
    "text": ("response.output_text.delta", {"content_index": 0, "logprobs": []}),
}
"""Kind of a piece → its event, and further members."""


class Responses(ResponseWriter):
    """Reasoning as summary text, refusals, function calls; `response.completed`, `.incomplete` or `.failed`."""

    vendor = "responses"
    has_refusals = True
    reports_hidden_reasoning = True
    final: ClassVar = "response.{}"
    """Type of the last event, by the status of the response."""

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"resp_{plan.token}"
        self.sequence = -1
        self.open: tuple[str, int] | None = None
        self.items: list[dict[str, Any]] = []
        self.item_text = ""

    def _event(self, kind: str, piece: Piece | None = None, **body: Any) -> BodyPart:
        self.sequence += 1
        return self.typed_event(kind, piece, sequence_number=self.sequence, **body)

    def _response(self, status: str, details: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return {
            "id": self.id, "object": "response", "created_at": self.created_s, "status": status, "error": None,
            "incomplete_details": details or None, "instructions": None, "metadata": {}, "model": self.plan.model,
            "output": [], "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [],
            "top_p": 1.0, "usage": None, **more,
        }  # fmt: skip

    def preamble(self) -> list[tuple[float, BodyPart]]:
        created = self._event("response.created", response=self._response("in_progress"))
        in_progress = self._event("response.in_progress", response=self._response("in_progress"))
        body_parts = [(0.3, created), (0.3, in_progress)]
        if self.plan.reasoning == "hidden":
            item = {"id": f"rs_{self.plan.token}", "type": "reasoning", "summary": []}
            body_parts.append((0.35, self._event("response.output_item.added", output_index=0, item=item)))
            body_parts.append((0.95, self._event("response.output_item.done", output_index=0, item=item)))
            self.items.append(item)
        return body_parts

    def _change_item(self, piece: Piece) -> list[BodyPart]:
        """Close the open item and open the next one if the piece belongs to another."""
        item = ("tool", piece.tool) if piece.kind.startswith("tool") else (piece.kind, 0)
        if self.open == item:
            return []
        body_parts = self._close_item()
        self.open = item
        return [*body_parts, *self._open_item(piece)]

    @property
    def _at(self) -> dict[str, Any]:
        """The members of an event that name the open item."""
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        body_parts, at = self._change_item(piece), self._at
        if piece.kind == "tool_start":
            return body_parts
        self.item_text += piece.text
        kind, members = _DELTAS[piece.kind]
        if piece.kind == "text":
            members = {**members, "obfuscation": self.plan.token[: 1 + len(piece.text) % 16]}
        return [*body_parts, self._event(kind, piece, **at, **members, delta=piece.text)]

    def _open_item(self, piece: Piece) -> list[BodyPart]:
        token, self.item_text = self.plan.token, ""
        item: dict[str, Any] = {
            "id": f"msg_{token}", "type": "message", "status": "in_progress", "role": "assistant", "content": [],
        }  # fmt: skip
        members: dict[str, Any] = {"content_index": 0, "part": self._part(piece.kind, "")}
        kind, output = "response.content_part.added", None
        if piece.kind == "tool_start":
            tool, output = self.tools[piece.tool], piece
            item = {
                "id": f"fc_{token}{piece.tool}", "type": "function_call", "status": "in_progress",
                "arguments": "", "call_id": tool["id"], "name": tool["name"],
            }  # fmt: skip
        elif piece.kind == "reasoning":
            item = {"id": f"rs_{token}", "type": "reasoning", "summary": []}
            kind = "response.reasoning_summary_part.added"
            members = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
        self.items.append(item)
        added = self._event("response.output_item.added", output, output_index=len(self.items) - 1, item=item)
        return [added] if output is not None else [added, self._event(kind, **self._at, **members)]

    @staticmethod
    def _part(kind: str, text: str) -> dict[str, Any]:
        if kind == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}

    def _close_item(self) -> list[BodyPart]:
        if self.open is None:
            return []
        kind, index, item, at = self.open[0], len(self.items) - 1, self.items[-1], self._at
        self.open = None
        if kind == "tool":
            item = {**item, "status": "completed", "arguments": self.item_text}
            body_parts = [
                self._event("response.function_call_arguments.done", **at, arguments=self.item_text)
            ]
        elif kind == "reasoning":
            part = {"type": "summary_text", "text": self.item_text}
            item = {**item, "summary": [part]}
            body_parts = [
                self._event(
                    "response.reasoning_summary_text.done", **at, summary_index=0, text=self.item_text
                ),
                self._event("response.reasoning_summary_part.done", **at, summary_index=0, part=part),
            ]
        else:
            part = self._part(kind, self.item_text)
            item = {**item, "status": "completed", "content": [part]}
            body_parts = self._text_done(kind, {**at, "content_index": 0})
            body_parts.append(self._event("response.content_part.done", **at, content_index=0, part=part))
        self.items[-1] = item
        return [*body_parts, self._event("response.output_item.done", output_index=index, item=item)]

    def _text_done(self, kind: str, at: dict[str, Any]) -> list[BodyPart]:
        if kind == "refusal":
            return [self._event("response.refusal.done", **at, refusal=self.item_text)]
        return [self._event("response.output_text.done", **at, text=self.item_text, logprobs=[])]

    def usage(self) -> tuple[dict[str, Any], Usage]:
        plan = self.plan
        raw = {
            "input_tokens": plan.input_tokens, "input_tokens_details": {"cached_tokens": plan.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": plan.input_tokens + self.output_tokens,
        }  # fmt: skip
        return raw, Usage(plan.input_tokens, self.output_tokens, self.reasoning_tokens, plan.cached_tokens)

    def _status(self) -> tuple[str, dict[str, Any]]:
        """Status of the complete response, and why it has it."""
        if self.plan.length_finish and not self.plan.tool_calls:
            return "incomplete", {"reason": "max_output_tokens"}
        return "completed", {}

    def _ended(self, status: str, details: dict[str, Any]) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        return self._response(status, details, output=self.items, usage=raw), usage

    def finish(self) -> list[BodyPart]:
        status, details = self._status()
        return [*self._close_item(), self._final(status, details, status)]

    def _final(self, status: str, details: dict[str, Any], finish_reason: str | None) -> BodyPart:
        """The event that ends the response. `finish_reason`: None if it failed."""
        response, usage = self._ended(status, details)
        body_part = self._event(self.final.format(status), response=response)
        has_finished = finish_reason is not None
        return replace(
            body_part, usage=usage, final_usage=True, terminal=has_finished, finish_reason=finish_reason
        )

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error: dict[str, Any] = {"code": "server_error", "message": "The model failed while generating."}
        if int(self.plan.token[0], 16) % 2:  # vendors use both: an error event, or a failed response
            return [self._event("error", **error, param=None)], "server_error"
        response = self._response("failed", output=self.items, error=error)
        return [self._event("response.failed", response=response)], "server_error"

    def socket_error(
        self, status: int, message: str, code: str | None = None
    ) -> tuple[list[BodyPart], str | None]:
        """An error response as a message of a WebSocket, and its type. `code`: its code, if not that of the status."""
        body, kind = self.http_error(status, message)
        body["error"]["code"] = code or body["error"]["code"]
        return [self.typed_event("error", status=status, **body)], kind

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        for piece in self.plan.pieces():
            self.write_piece(piece, False)
        self._close_item()
        return self._ended(*self._status())
