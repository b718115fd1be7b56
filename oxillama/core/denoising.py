"""Texts that a model writes whole, by steps that fill masks: `Denoising`, the run of `Engine.diffuse`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_keywords, check_type
from oxillama.core.context import EngineContext
from oxillama.core.prompts import check_token, read_prompt
from oxillama.core.request import Bell, Request, ResultQueue, Want
from oxillama.core.results import CancelToken, Completion, FinishReason
from oxillama.errors import ConfigError, ContextOverflowError, GenerateError
from oxillama.keywords import DrawOptions
from oxillama.lora import check_wanted
from oxillama.sampling.denoising import MaskedText
from oxillama.scheduling.sequence import Sequence
from oxillama.text_settings import DiffusionSettings, OnStep

__all__ = [
    "DenoiseRequest",
    "Denoising",
    "DiffuseOptions",
    "denoised",
]


class DiffuseOptions(DrawOptions, total=False):
    """Keywords of `Engine.diffuse`."""

    max_tokens: int
    steps: int | None
    order: str | None
    block_length: int | None
    eps: float | None
    order_temperature: float
    cfg_scale: float
    mask_token: int | None
    shift_logits: bool | None
    on_step: OnStep | None
    cancel_token: CancelToken | None
    lora: Any


class DenoiseRequest(Request):
    """Logits of some positions of a whole text, float32 [len(wanted), n_vocab], in `out`."""

    want: Want = "all"

    def __init__(self, tokens: list[int], wanted: NDArray[np.intp], outbox: ResultQueue, **options: Any) -> None:
        super().__init__(Sequence(tokens, len(tokens)), outbox, **options)
        self.out: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._wanted = wanted

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        self.out = rows[self._wanted]  # all rows are there: such models compute texts whole
        return "stop"


class Denoising:
    """A text that is written by steps: compute what each of `rounds` gives before the next, and take `result`."""

    def __init__(self, context: EngineContext, prompt: Any, options: Mapping[str, Any]) -> None:
        """Raises what `Engine.diffuse` raises before its first step."""
        check_keywords("diffuse", options, DiffuseOptions.__annotations__)
        self.settings = settings = DiffusionSettings(**options)
        if settings.cancel_token is not None:
            check_type("cancel_token", settings.cancel_token, CancelToken)
        check_denoises(context)
        self.context, self.cancelled = context, False
        self.loras = context.loras.select(check_wanted("lora", settings.lora))
        mask = mask_of(context, settings)
        ids = read_masked(context, read_prompt("prompt", prompt, "diffuse() takes"), settings.max_tokens, mask)
        self.text = MaskedText(ids, mask, settings, context.spec.shifted)

    def rounds(self, bell: Callable[[], Bell] | None = None) -> Iterator[tuple[list[DenoiseRequest], ResultQueue]]:
        """The requests of each step, which are to be finished before the next is asked for. bell: of a coroutine."""
        text, token = self.text, self.settings.cancel_token
        for n, step in enumerate(text.steps(self.context.tokenizer.eog_ids), 1):
            outbox = ResultQueue(len(step.texts), None if bell is None else bell())
            requests = [
                DenoiseRequest(tokens, step.wanted, outbox, loras=self.loras, cancel_token=token)
                for tokens in step.texts
            ]
            yield requests, outbox
            self.cancelled = any(request.finish_reason == "cancelled" for request in requests)
            if self.cancelled:
                return
            text.fill(step, [request.out for request in requests])
            if self.settings.on_step is not None:
                self.settings.on_step(n, [None if token == text.mask else token for token in text.written])

    def result(self) -> Completion:
        """The text up to an end token; of one that was cancelled, up to the first mask."""
        ends, written = self.context.tokenizer.eog_ids, self.text.written
        n = next((i for i, t in enumerate(written) if t in ends or t == self.text.mask), len(written))
        stopped = n < len(written) and written[n] in ends
        stream = self.context.tokenizer.stream(skip_special=True)
        return Completion(
            text="".join(map(stream.push, written[:n])) + stream.flush(),
            token_ids=written[:n],
            finish_reason="stop" if stopped else "cancelled" if self.cancelled else "length",
            prompt_tokens=len(self.text.prompt),
            stop_reason=written[n] if stopped else None,
        )


def denoised(context: EngineContext, prompt: Any, options: Mapping[str, Any]) -> Completion:
    """The text of `Engine.diffuse`, whose steps the calling thread waits for."""
    denoising = Denoising(context, prompt, options)
    for requests, outbox in denoising.rounds():
        context.core.run(requests, outbox)
    return denoising.result()


def check_denoises(context: EngineContext) -> None:
    """Raises GenerateError for a model of another kind, EngineClosedError once the engine is closed."""
    context.core.check_open()
    if not context.spec.denoises:
        use = "generate() is for it" if context.spec.causal else "it is for embed() alone"
        raise GenerateError(f"architecture {context.spec.arch} does not denoise texts: {use}")


def mask_of(context: EngineContext, settings: DiffusionSettings) -> int:
    """The mask's id. Raises ConfigError where neither file nor caller says it."""
    if settings.mask_token is not None:
        return check_token("mask_token", settings.mask_token, context.spec.n_vocab)
    if context.tokenizer.mask_id is None:
        raise ConfigError("the model's file names no mask token (tokenizer.ggml.mask_token_id): give mask_token")
    return context.tokenizer.mask_id


def read_masked(context: EngineContext, prompt: Any, max_tokens: int, mask: int) -> list[int]:
    """The prompt's tokens. Raises ContextOverflowError without room for the output, ConfigError for a mask in it."""
    ids = context.factory.ids("prompt", prompt)
    if len(ids) + max_tokens > context.context_size:
        raise ContextOverflowError(
            f"prompt has {len(ids)} tokens, max_tokens is {max_tokens} and context_size {context.context_size}, which "
            "holds both: shorten one, or load with a larger context_size"
        )
    if mask in ids:
        raise ConfigError(f"prompt has the mask token {mask} at index {ids.index(mask)}: what follows it is written")
    return ids
