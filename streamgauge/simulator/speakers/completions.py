"""OpenAI's legacy text completions: `choices[].text`, no roles, no tools, no reasoning channel."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.plan import Piece, Plan
from streamgauge.simulator.speakers.chat import openai_error
from streamgauge.simulator.speakers.speaker import Speaker, Usage, Wire
from streamgauge.simulator.speakers.vendors import fireworks_metrics


class Completions(Speaker):
    """Says text only: whatever else a plan asks for is said as text."""

    name = "completions"
    many = True

    def __init__(self, plan: Plan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"cmpl-{plan.token[:24]}"

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self.head("text_completion"), "choices": choices, **more}

    def _choice(self, index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"text": text, "index": index, "logprobs": None, "finish_reason": finish}

    def usage(self) -> tuple[dict[str, Any], Usage]:
        prompt, completion = self.plan.input_tokens, self.output_tokens
        raw = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return raw, Usage(input_tokens=prompt, output_tokens=completion)

    @property
    def finish_reason(self) -> str:
        return "length" if self.plan.length_finish else "stop"

    def say(self, piece: Piece, last: bool) -> list[Wire]:
        more: dict[str, Any] = {}
        usage = None
        if self.plan.continuous_usage:
            more["usage"], usage = self.usage()
        body = self.chunk([self._choice(piece.choice, piece.text)], **more)
        return [Wire(data=self.event(body), piece=piece, usage=usage)]

    def finish(self) -> list[Wire]:
        wires = []
        for index in range(self.plan.choices):
            wire = Wire(data=self.event(self.chunk([self._choice(index, "", self.finish_reason)])))
            wire.finish_reason, wire.terminal = self.finish_reason, index == self.plan.choices - 1
            wires.append(wire)
        if self.plan.include_usage or self.plan.continuous_usage:
            raw, usage = self.usage()
            wires.append(Wire(data=self.event(self.chunk([], usage=raw)), usage=usage, final_usage=True))
        return [*wires, Wire(data=self.event("[DONE]"))]

    def fail(self) -> tuple[list[Wire], str]:
        error = {"message": "The model failed while generating.", "type": "server_error", "code": None}
        return [Wire(data=self.event({"error": error}))], "server_error"

    def answer(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        choices = [self._choice(i, self.text[i], self.finish_reason) for i in range(self.plan.choices)]
        return self.chunk(choices, usage=raw), usage

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        return openai_error(status, message)


class FireworksCompletions(Completions):
    """Usage and `perf_metrics` on the finish chunk."""

    name = "fireworks_completions"

    def finish(self) -> list[Wire]:
        metrics = fireworks_metrics(self.plan.input_tokens, self.plan.cached_tokens, self.plan.ttft_s)
        wires = []
        for index in range(self.plan.choices):
            final = index == self.plan.choices - 1
            raw, usage = self.usage()
            more = {"usage": raw, "perf_metrics": metrics} if final else {}
            body = self.chunk([self._choice(index, "", self.finish_reason)], **more)
            wire = Wire(data=self.event(body), usage=usage if final else None, final_usage=final)
            wire.finish_reason, wire.terminal = self.finish_reason, final
            wires.append(wire)
        return [*wires, Wire(data=self.event("[DONE]"))]


COMPLETION_SPEAKERS = (Completions, FireworksCompletions)
