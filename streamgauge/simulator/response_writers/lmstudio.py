"""LM Studio's /api/v1/chat: 19 named events, including model load and prompt processing."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.planning.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage

_PROVIDER = {"type": "plugin", "plugin_id": "lmstudio/simulated"}


class LMStudio(ResponseWriter):
    """The server runs tool calls: arguments are an object, and a result follows.

    An `error` is followed by `chat.end` with the partial output.
    """

    vendor = "lmstudio"

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"resp_{plan.token}"
        self.open: str | None = None
        self.last_tool: int | None = None
        self.loads = int(plan.token[0], 16) < 5
        """About a third of the requests load the model first."""

    def _event(self, kind: str, piece: Piece | None = None, **body: Any) -> BodyPart:
        return BodyPart(data=self.event({"type": kind, **body}, kind), piece=piece)

    def preamble(self) -> list[tuple[float, BodyPart]]:
        instance: dict[str, Any] = {"model_instance_id": self.plan.model}
        body_parts = [(0.02, self._event("chat.start", **instance))]
        if self.loads:
            body_parts.append((0.05, self._event("model_load.start", **instance)))
            body_parts += [
                (0.05 + 0.5 * step, self._event("model_load.progress", **instance, progress=step))
                for step in (0.25, 0.5, 0.75, 1.0)
            ]
            seconds = round(self.plan.ttft_s * 0.5, 3)
            body_parts.append((0.56, self._event("model_load.end", **instance, load_time_seconds=seconds)))
        body_parts.append((0.6, self._event("prompt_processing.start")))
        body_parts += [
            (0.6 + 0.3 * p, self._event("prompt_processing.progress", progress=p)) for p in (0.0, 0.5, 1.0)
        ]
        body_parts.append((0.95, self._event("prompt_processing.end")))
        return body_parts

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        if piece.kind == "tool_start":
            body_parts = [*self._close(), *self._tool_result()]
            self.last_tool = piece.tool
            return [
                *body_parts,
                self._event("tool_call.start", piece, tool=piece.text, provider_info=_PROVIDER),
            ]
        if piece.kind == "tool_arguments":
            # Arguments are one object, sent with the last piece.
            tool = self.tools[piece.tool]
            if not tool["arguments"].endswith("}"):
                return []
            complete = Piece(
                kind="tool_arguments", text=tool["arguments"], tokens=piece.tokens, tool=piece.tool
            )
            body = {
                "tool": tool["name"],
                "arguments": self._parsed(tool["arguments"]),
                "provider_info": _PROVIDER,
            }
            return [self._event("tool_call.arguments", complete, **body)]
        channel = "reasoning" if piece.kind == "reasoning" else "message"
        body_parts = []
        if self.open != channel:
            body_parts = [*self._close(), *self._tool_result(), self._event(f"{channel}.start")]
            self.open = channel
        return [*body_parts, self._event(f"{channel}.delta", piece, content=piece.text)]

    def _close(self) -> list[BodyPart]:
        channel, self.open = self.open, None
        return [] if channel is None else [self._event(f"{channel}.end")]

    def _tool_result(self) -> list[BodyPart]:
        if self.last_tool is None:
            return []
        tool, self.last_tool = self.tools[self.last_tool], None
        arguments = self._parsed(tool["arguments"])
        if tool["name"] == "read_gauge":
            metadata = {"type": "invalid_arguments", "tool_name": tool["name"], "arguments": arguments}
            return [self._event("tool_call.failure", reason="No such gauge.", metadata=metadata)]
        body = {"tool": tool["name"], "arguments": arguments, "output": "[]", "provider_info": _PROVIDER}
        return [self._event("tool_call.success", **body)]

    def _result(self) -> dict[str, Any]:
        output: list[dict[str, Any]] = []
        if self.reasoning:
            output.append({"type": "reasoning", "content": self.reasoning})
        if self.text[0]:
            output.append({"type": "message", "content": self.text[0]})
        output += [
            {"type": "tool_call", "tool": t["name"], "arguments": self._parsed(t["arguments"]), "output": "[]",
             "provider_info": _PROVIDER}
            for t in self.tools if t["arguments"].endswith("}")
        ]  # fmt: skip
        speed = round(1 / self.plan.gap_s, 2) if self.plan.gap_s > 0 else 0.0
        return {
            "model_instance_id": self.plan.model, "output": output,
            "stats": {
                "input_tokens": self.plan.input_tokens, "total_output_tokens": self.output_tokens,
                "reasoning_output_tokens": self.reasoning_tokens, "tokens_per_second": speed,
                "time_to_first_token_seconds": round(self.plan.ttft_s, 3),
            },
            "response_id": self.id,
        }  # fmt: skip

    def _usage(self) -> Usage:
        return Usage(self.plan.input_tokens, self.output_tokens, self.reasoning_tokens, None)

    def finish(self) -> list[BodyPart]:
        end = self._event("chat.end", result=self._result())
        end.usage, end.final_usage, end.terminal = self._usage(), True, True
        return [*self._close(), *self._tool_result(), end]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error = {"type": "internal_error", "message": "The model crashed."}
        end = self._event("chat.end", result=self._result())
        end.usage = self._usage()
        return [self._event("error", error=error), end], "internal_error"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        return self._result(), self._usage()

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        kind = "internal_error" if status >= 500 else "invalid_request"
        return {"error": {"type": kind, "message": message}}, kind
