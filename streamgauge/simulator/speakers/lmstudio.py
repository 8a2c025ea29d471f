"""LM Studio's /api/v1/chat: 19 named events, the model's load and the prompt's processing among them."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.plan import Piece, Plan
from streamgauge.simulator.speakers.speaker import Speaker, Usage, Wire

_PROVIDER = {"type": "plugin", "plugin_id": "lmstudio/simulated"}


class LMStudio(Speaker):
    """Tool calls are run by the server itself: arguments are an object, and a result follows.

    An `error` is followed by `chat.end` with whatever was generated.
    """

    name = "lmstudio"

    def __init__(self, plan: Plan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"resp_{plan.token}"
        self.open: str | None = None
        self.last_tool: int | None = None
        self.loads = int(plan.token[0], 16) < 5
        """About a third of the requests find the model not loaded."""

    def _event(self, kind: str, piece: Piece | None = None, **body: Any) -> Wire:
        return Wire(data=self.event({"type": kind, **body}, kind), piece=piece)

    def opening(self) -> list[tuple[float, Wire]]:
        instance: dict[str, Any] = {"model_instance_id": self.plan.model}
        wires = [(0.02, self._event("chat.start", **instance))]
        if self.loads:
            wires.append((0.05, self._event("model_load.start", **instance)))
            wires += [
                (0.05 + 0.5 * step, self._event("model_load.progress", **instance, progress=step))
                for step in (0.25, 0.5, 0.75, 1.0)
            ]
            seconds = round(self.plan.ttft_s * 0.5, 3)
            wires.append((0.56, self._event("model_load.end", **instance, load_time_seconds=seconds)))
        wires.append((0.6, self._event("prompt_processing.start")))
        wires += [
            (0.6 + 0.3 * p, self._event("prompt_processing.progress", progress=p)) for p in (0.0, 0.5, 1.0)
        ]
        wires.append((0.95, self._event("prompt_processing.end")))
        return wires

    def say(self, piece: Piece, last: bool) -> list[Wire]:
        if piece.kind == "tool_start":
            wires = [*self._close(), *self._tool_result()]
            self.last_tool = piece.tool
            return [*wires, self._event("tool_call.start", piece, tool=piece.text, provider_info=_PROVIDER)]
        if piece.kind == "tool_arguments":
            # Arguments come whole, as an object, with the last of their pieces.
            tool = self.tools[piece.tool]
            if not tool["arguments"].endswith("}"):
                return []
            whole = Piece(kind="tool_arguments", text=tool["arguments"], tokens=piece.tokens, tool=piece.tool)
            body = {
                "tool": tool["name"],
                "arguments": self._parsed(tool["arguments"]),
                "provider_info": _PROVIDER,
            }
            return [self._event("tool_call.arguments", whole, **body)]
        channel = "reasoning" if piece.kind == "reasoning" else "message"
        wires = []
        if self.open != channel:
            wires = [*self._close(), *self._tool_result(), self._event(f"{channel}.start")]
            self.open = channel
        return [*wires, self._event(f"{channel}.delta", piece, content=piece.text)]

    def _close(self) -> list[Wire]:
        channel, self.open = self.open, None
        return [] if channel is None else [self._event(f"{channel}.end")]

    def _tool_result(self) -> list[Wire]:
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

    def finish(self) -> list[Wire]:
        end = self._event("chat.end", result=self._result())
        end.usage, end.final_usage, end.terminal = self._usage(), True, True
        return [*self._close(), *self._tool_result(), end]

    def fail(self) -> tuple[list[Wire], str]:
        error = {"type": "internal_error", "message": "The model crashed."}
        end = self._event("chat.end", result=self._result())
        end.usage = self._usage()
        return [self._event("error", error=error), end], "internal_error"

    def answer(self) -> tuple[dict[str, Any], Usage]:
        return self._result(), self._usage()

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        kind = "internal_error" if status >= 500 else "invalid_request"
        return {"error": {"type": kind, "message": message}}, kind


LMSTUDIO_SPEAKERS = (LMStudio,)
