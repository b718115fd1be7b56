"""From prompts and options to requests that generate text."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from oxillama.config import MAX_CONTEXT, SamplerConfig, SamplingOptions, check_bool, check_int
from oxillama.engine.prompts import check_stop, check_tokens, make_sampler_config
from oxillama.engine.request import Outbox
from oxillama.engine.results import CancelToken, Chunk, Completion
from oxillama.engine.sequence import Sequence
from oxillama.engine.stream import StopMatcher, TextRequest
from oxillama.errors import ConfigError, ContextOverflowError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Sampler, SamplerChain
from oxillama.tokenizer import Tokenizer

__all__ = ["GenerateOptions", "Prompt", "Stop", "TextMaker", "TextOptions", "completion_of", "parse_options"]

Prompt = str | SequenceOf[int]
Stop = str | SequenceOf[str] | None


class GenerateOptions(SamplingOptions, total=False):
    """The keywords of `Engine.generate`."""

    max_tokens: int | None
    stop: Stop
    ignore_eos: bool
    sampler: SamplerConfig | None
    on_token: Callable[..., object] | None
    cancel_token: CancelToken | None


@dataclass(frozen=True)
class TextOptions:
    """What a caller asks for, checked. max_tokens None: up to the context's end."""

    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    chain: SamplerChain
    cancel_token: CancelToken | None


def parse_options(
    function: str,
    *,
    max_tokens: int | None,
    stop: Any,
    ignore_eos: bool,
    sampler: SamplerConfig | None,
    cancel_token: CancelToken | None,
    sampling: Mapping[str, Any],
) -> TextOptions:
    """Raises ConfigError for values out of range, TypeError for keywords that `function` doesn't have."""
    if max_tokens is not None:
        max_tokens = check_int("max_tokens", max_tokens, 1, MAX_CONTEXT)
    if cancel_token is not None and not isinstance(cancel_token, CancelToken):
        raise ConfigError(f"cancel_token must be a CancelToken, not {type(cancel_token).__name__}")
    chain = SamplerChain.from_config(make_sampler_config(function, sampler, dict(sampling)))
    return TextOptions(max_tokens, check_stop(stop), check_bool("ignore_eos", ignore_eos), chain, cancel_token)


class TextMaker:
    """Builds requests for one engine."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, context_size: int, n_slots: int) -> None:
        """`n_slots`: tokens that the KV cache holds."""
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._context_size = context_size
        self._n_slots = n_slots
        # Requests draw their tokens one after another: one buffer does for all.
        self._scratch = Candidates()

    def ids(self, name: str, prompt: Any) -> list[int]:
        """Token ids of a prompt: text gets the special tokens that the model wants, ids are taken as they are.

        Raises ConfigError if nothing is left, TokenizerError for bad ids.
        """
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else check_tokens(name, prompt, self._n_vocab)
        if not ids:
            raise ConfigError(f"{name} is empty: give at least one token")
        return ids

    def limit(self, name: str, n_prompt: int, max_tokens: int | None) -> int:
        """How many tokens may be generated. Raises ContextOverflowError if the prompt leaves no room for one."""
        room = self._context_size - n_prompt
        if room < 1:
            raise ContextOverflowError(
                f"{name} has {n_prompt} tokens and context_size is {self._context_size}, which must also hold the "
                "output: shorten the prompt, or load with a larger context_size"
            )
        if max_tokens is not None:
            return min(room, max_tokens)
        return max(1, min(room, self._n_slots - n_prompt))

    def request(
        self,
        ids: list[int],
        options: TextOptions,
        outbox: Outbox,
        *,
        name: str = "prompt",
        index: int = 0,
        sequence: Sequence | None = None,
    ) -> TextRequest:
        """A request for text after `ids`. Given a `sequence`, its blocks are kept, and `ids` must be its tokens."""
        max_tokens = self.limit(name, len(ids), options.max_tokens)
        # The last token is drawn, but never computed.
        n_reserve = len(ids) + max_tokens - 1
        kept = sequence is not None
        if sequence is None:
            sequence = Sequence(ids, n_reserve)
        else:
            sequence.n_reserve = n_reserve
        window = options.chain.config.repetition_penalty_window
        return TextRequest(
            sequence,
            outbox,
            sampler=Sampler(options.chain, prompt=ids[-window:] if window else (), scratch=self._scratch),
            stream=self._tokenizer.stream(skip_special=True),
            stops=StopMatcher(options.stops),
            max_tokens=max_tokens,
            end_ids=() if options.ignore_eos else self._tokenizer.eog_ids,
            index=index,
            cancel_token=options.cancel_token,
            keep_blocks=kept,
        )


def completion_of(request: TextRequest, pieces: list[Chunk]) -> Completion:
    """All chunks of a finished request as one."""
    return Completion(
        text="".join(piece.text for piece in pieces),
        token_ids=[token for piece in pieces for token in piece.token_ids],
        finish_reason=request.finish_reason or "cancelled",
        prompt_tokens=request.n_prompt,
        timings=request.timings,
    )
