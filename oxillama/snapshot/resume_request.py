"""Resumption of one generation request."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from oxillama._util.checks import MAX_CONTEXT
from oxillama._util.json_fields import Fields
from oxillama.core.draft_options import MAX_SPECULATIVE, DraftOptions
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.logprobs import MAX_LOGPROBS
from oxillama.core.options import TextOptions
from oxillama.core.request import ResultQueue
from oxillama.core.stopping import StoppingCriterion
from oxillama.drafts.rejection import check_chain
from oxillama.errors import (
    ConfigError,
    ContextOverflowError,
    GrammarError,
    SnapshotDamagedError,
    SnapshotMismatchError,
)
from oxillama.lora import LoraRegistry, LoraSet
from oxillama.lora.registry import check_scale, combined
from oxillama.sampling import LogitsProcessor, SamplerChain
from oxillama.snapshot.format.reader import Saved
from oxillama.snapshot.request_checks import check_replayed, check_text, restore_scores
from oxillama.snapshot.request_state import (
    LogprobReader,
    check_given,
    read_chain_of,
    read_chunks,
    read_drafts,
    read_sampler,
    read_serving,
    read_tool_use,
)
from oxillama.snapshot.sequences import UNKNOWN, put

if TYPE_CHECKING:
    from oxillama.core.results import CancelToken
    from oxillama.engine.engine import Engine
    from oxillama.scheduling.sequence import Sequence

__all__ = [
    "Given",
    "TextResumer",
    "adapter_set",
    "tokens_of",
]


def tokens_of(saved: Saved, n_vocab: int, label: str) -> list[int]:
    """Checked. Raises SnapshotDamagedError."""
    rows = saved.tensors.get("tokens")
    tokens: list[int] = [] if rows is None else rows.array.tolist()
    given = Fields(saved.state, label)
    unknown = "unknown_tokens" in given and given.flag("unknown_tokens")
    least = UNKNOWN if unknown and given.get("kind") == "session" else 0  # what is not known can't be gone on from
    if rows is None or any(not least <= token < n_vocab for token in tokens):
        raise SnapshotDamagedError(f"{label}: its tokens are missing, or not all from 0 to {n_vocab - 1}")
    return tokens


def adapter_set(loras: LoraRegistry, weights: list[tuple[str, float]], files: Fields, label: str) -> LoraSet:
    """Adapters by their digests. Raises SnapshotMismatchError, which names one that is not loaded."""
    known = {lora.digest: lora for lora in [*loras.named.values(), *(lora for lora, _ in loras.pushed)]}
    for digest, _ in weights:
        if digest not in known:
            path = files.get(digest, "of unknown path")
            raise SnapshotMismatchError(
                f"{label}: it uses the adapter {digest[:16]}… ({path!s:.200}), "
                "which is not loaded: load_lora() it first, under any name"
            )
    try:
        scaled = [
            (loras.bind(known[digest]), check_scale(f"scale of {digest[:16]}…", scale)) for digest, scale in weights
        ]
    except ConfigError as error:
        raise SnapshotDamagedError(f"{label}: its adapters: {error}") from None
    found = combined(scaled)
    if list(found.key) != weights:
        raise SnapshotDamagedError(f"{label}: its adapters are not in order")
    return found


class Given(NamedTuple):
    """What no file can hold, and the caller gives again: functions, the chain that has some, and a cancel token."""

    chain: SamplerChain | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    criteria: tuple[StoppingCriterion, ...] = ()
    cancel_token: CancelToken | None = None


class TextResumer:
    """A saved request for text on its way into an engine."""

    def __init__(self, engine: Engine, saved: Saved, label: str, draft: Any = None) -> None:
        self.engine, self.saved, self.label = engine, saved, label
        self.state = Fields(saved.state, label)
        self.given, self.sequence = self.state.sub("text"), self.state.sub("sequence")
        self.tokens = tokens_of(saved, engine.n_vocab, label)
        self.n_prompt = self.sequence.integer("n_prompt", 1, max(1, len(self.tokens)))
        self.reader = LogprobReader(label, engine.tokenizer.token_bytes)
        self.drafts = self._drafts(draft)

    def _drafts(self, own: Any) -> DraftOptions:
        """Who guesses. Raises SnapshotMismatchError for a draft that is of no use here."""
        drafts = read_drafts(self.given.maybe_sub("speculation"), own, self.label)
        try:
            self.engine._maker.bind(drafts)
        except ConfigError as error:
            raise SnapshotMismatchError(f"{self.label}: {error}") from None
        return drafts

    def resumed(self, own: Given, outbox: ResultQueue, index: int) -> GenerationRequest:
        """The request, which leaves chunks in `outbox`; those that nobody has read are there."""
        chunks = read_chunks(self.given, self.reader, self.label)
        try:
            check_text(self, chunks)
        except ConfigError as error:
            raise SnapshotDamagedError(f"{self.label}: {error}") from None
        request, reason = self.request(self.options(own), outbox, index), self.given.get("finished")
        restore_scores(self, request, chunks)
        if reason is None:
            check_replayed(self, request)
        request.finish_reason = reason
        outbox.n_open += reason is None
        outbox.items.extend((index, chunk) for chunk in chunks)
        return request

    def options(self, own: Given) -> TextOptions:
        """As the request was made with. Raises SnapshotMismatchError for a context that is too small, and for functions
        that are missing."""
        given, limit = self.given, self.given.integer("limit", self.n_prompt + 1, MAX_CONTEXT)
        if limit > self.engine.context_size:
            raise SnapshotMismatchError(
                f"{self.label}: it goes on to {limit} tokens, more than the context_size of this engine, "
                f"{self.engine.context_size}"
            )
        try:
            serving = read_serving(given)
            check_given("stopping_criteria", self.given.maybe_integer("n_criteria"), len(own.criteria), self.label)
            chain = read_chain_of(self.state.sub("sampler"), self.label, own.chain, len(own.processors))
            if self.drafts.acceptance == "rejection":
                check_chain(chain)
        except ConfigError as error:
            raise SnapshotDamagedError(f"{self.label}: {error}") from None
        return TextOptions(
            limit - self.n_prompt, tuple(given.texts("stops")), given.flag("ignore_eos"), chain, own.cancel_token,
            serving, own.processors, given.maybe_integer("logprobs", 0, MAX_LOGPROBS),
            given.maybe_integer("prompt_logprobs", 0, MAX_LOGPROBS),
            tool_use=read_tool_use(given.maybe_sub("tools"), self.label), drafts=self.drafts, criteria=own.criteria,
        )  # fmt: skip

    def request(self, options: TextOptions, outbox: ResultQueue, index: int) -> GenerationRequest:
        """One that goes on where the other one was when it was saved."""
        engine, prompt, drawn = self.engine, self.tokens[: self.n_prompt], self.tokens[self.n_prompt :]
        n_computed = self.sequence.integer("n_computed", 0, max(0, len(self.tokens) - 1))
        weights, files = self.sequence.scaled("weights"), self.state.sub("adapters").sub("files")
        adapters = adapter_set(engine._loras, weights, files, self.label)
        number = self.given.integer("number")
        holder: list[GenerationRequest] = []
        try:
            # Its seed is its own already.
            begin = partial(self.begin, n_computed, holder)
            echo = self.given.maybe_text("echo") or ""
            request = engine._maker.request(prompt, options, outbox, index=index, echo=echo, begin=begin)
            data = read_sampler(self.state.sub("sampler"), self.saved.tensors, self.tokens)
            request.go_on(drawn, data, finished=self.given.get("finished") is not None)
        except (ConfigError, GrammarError, ContextOverflowError) as error:
            raise SnapshotDamagedError(f"{self.label}: {error}") from None
        holder.append(request)
        request.number, request.loras, request.sequence.weights = number, adapters, adapters.key
        request.sequence.n_cached = self.given.maybe_integer("n_cached", 0, self.n_prompt)
        self._restore_round(request)
        return request

    def _restore_round(self, request: GenerationRequest) -> None:
        """The round of draft tokens in the middle of which it was saved."""
        given = self.given.maybe_sub("speculation")
        begun = None if given is None else given.maybe_integer("n_begun", 0, MAX_SPECULATIVE)
        if not begun or given is None:
            return
        if not self.drafts.draft or self.drafts.acceptance != "rejection":
            raise given.wrong("n_begun", "left out unless acceptance is 'rejection'")
        if begun > min(self.drafts.num_speculative, len(self.tokens) - self.n_prompt - 1):
            raise given.wrong("n_begun", f"at most what one round of {self.drafts.num_speculative} can have given")
        assert request.speculation is not None
        request.speculation.n_begun = begun

    def begin(self, n_computed: int, made: list[GenerationRequest], sequence: Sequence) -> None:
        """In the turn that queues it: gives it what was computed."""
        put(self.engine._core, sequence, self.saved.tensors, n_computed, self.label)
        self.saved.tensors = {}  # of no more use
        request = made.pop()
        request.begin = None  # which keeps the engine
        if len(sequence.tokens) > self.n_prompt:
            request.first_at = request.counted_at = time.perf_counter()
            request.n_counted = len(sequence.tokens)
