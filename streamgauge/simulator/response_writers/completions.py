"""OpenAI's legacy text completions: `choices[].text`, no roles, no tools, no reasoning channel."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.planning.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.chat import openai_error
from streamgauge.simulator.response_writers.chat_vendors import fireworks_metrics
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage


class Completions(ResponseWriter):
    """Writes all pieces as text."""

    vendor = "completions"
    supports_choices = True

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
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

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        more: dict[str, Any] = {}
        usage = None
        if self.plan.continuous_usage:
            more["usage"], usage = self.usage()
        body = self.chunk([self._choice(piece.choice, piece.text)], **more)
        return [BodyPart(data=self.event(body), piece=piece, usage=usage)]

    def finish(self) -> list[BodyPart]:
        body_parts = []
        for index in range(self.plan.choices):
            body_part = BodyPart(data=self.event(self.chunk([self._choice(index, "", self.finish_reason)])))
            body_part.finish_reason, body_part.terminal = self.finish_reason, index == self.plan.choices - 1
            body_parts.append(body_part)
        if self.plan.include_usage or self.plan.continuous_usage:
            raw, usage = self.usage()
            body_parts.append(
                BodyPart(data=self.event(self.chunk([], usage=raw)), usage=usage, final_usage=True)
            )
        return [*body_parts, BodyPart(data=self.event("[DONE]"))]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error = {"message": "The model failed while generating.", "type": "server_error", "code": None}
        return [BodyPart(data=self.event({"error": error}))], "server_error"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        choices = [self._choice(i, self.text[i], self.finish_reason) for i in range(self.plan.choices)]
        return self.chunk(choices, usage=raw), usage

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        return openai_error(status, message)


class FireworksCompletions(Completions):
    """Usage and `perf_metrics` on the finish chunk."""

    vendor = "fireworks_completions"

    def finish(self) -> list[BodyPart]:
        metrics = fireworks_metrics(self.plan.input_tokens, self.plan.cached_tokens, self.plan.ttft_s)
        body_parts = []
        for index in range(self.plan.choices):
            final = index == self.plan.choices - 1
            raw, usage = self.usage()
            more = {"usage": raw, "perf_metrics": metrics} if final else {}
            body = self.chunk([self._choice(index, "", self.finish_reason)], **more)
            body_part = BodyPart(data=self.event(body), usage=usage if final else None, final_usage=final)
            body_part.finish_reason, body_part.terminal = self.finish_reason, final
            body_parts.append(body_part)
        return [*body_parts, BodyPart(data=self.event("[DONE]"))]
