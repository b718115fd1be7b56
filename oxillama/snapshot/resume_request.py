"""Resumption of one generation request."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from oxillama._util.checks import MAX_CONTEXT
from oxillama._util.json_fields import Fields
from oxillama._util.settings import check_fields
from oxillama.core.answer_options import read_tool_use
from oxillama.core.draft_options import DraftOptions
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.logprobs import MAX_LOGPROBS, LogprobRecorder
from oxillama.core.options import MAX_COMPLETIONS, StoppingCriterion, TextOptions
from oxillama.core.request import ResultQueue
from oxillama.core.results import Chunk, TokenLogprob, Usage
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
from oxillama.snapshot.format.reader import Contents
from oxillama.snapshot.request_state import (
    REASONS,
    LogprobReader,
    check_given,
    read_chain_of,
    read_chunks,
    read_drafts,
    read_ends,
    read_sampler,
    read_serving,
    read_stop_ids,
)
from oxillama.snapshot.sequences import UNKNOWN, put
from oxillama.text_settings import MAX_SPECULATIVE, check_stop

if TYPE_CHECKING:
    from oxillama.core.context import EngineContext
    from oxillama.core.results import CancelToken
    from oxillama.scheduling.sequence import Sequence

__all__ = [
    "Given",
    "SavedPrompt",
    "TextResumer",
    "adapter_set",
    "check_together",
    "prompt_of",
    "tokens_of",
]


def tokens_of(saved: Contents, n_vocab: int, label: str) -> list[int]:
    """The saved tokens, checked. Raises SnapshotDamagedError."""
    rows = saved.tensors.get("tokens")
    tokens: list[int] = [] if rows is None else rows.array.tolist()
    given = Fields(saved.state, label)
    unknown = "unknown_tokens" in given and given.flag("unknown_tokens")
    least = UNKNOWN if unknown and given.get("kind") == "session" else 0  # requests need known tokens
    if rows is None or any(not least <= token < n_vocab for token in tokens):
        raise SnapshotDamagedError(f"{label}: its tokens are missing, or not all from 0 to {n_vocab - 1}")
    return tokens


class SavedPrompt(NamedTuple):
    """Prompt of a saved request: token ids as they were given, positions that it takes, and those that an encoder
    filled."""

    ids: list[int]
    n_positions: int
    n_encoded: int


def prompt_of(engine: EngineContext, state: Fields, tokens: list[int], label: str) -> SavedPrompt:
    """The prompt that the saved tokens begin with.

    Raises SnapshotDamagedError, and SnapshotMismatchError if an encoder has read it into KV blocks of another size.
    """
    sequence = state.sub("sequence")
    n = sequence.integer("n_prompt", 1, max(1, len(tokens)))
    n_source = sequence.maybe_integer("n_source", 1, n)
    if (n_source is None) != (engine.spec.decoder_start is None):
        raise sequence.wrong("n_source", "the tokens that an encoder reads, if the model has one,")
    if n_source is None:
        return SavedPrompt(tokens[:n], n, 0)
    ids = tokens[:n_source]
    placed, fields = engine.factory.place(ids, {})
    if placed != tokens[:n]:
        theirs, mine = state.sub("engine").sub("config").integer("kv_block_size"), engine.config.kv_block_size
        if theirs != mine:
            raise SnapshotMismatchError(
                f"{label}: an encoder has read its prompt into KV blocks of {theirs} tokens, and this engine's have "
                f"{mine}: load it with kv_block_size={theirs}"
            )
        raise SnapshotDamagedError(f"{label}: behind the prompt of {n_source} tokens are others than a decoder's first")
    if 0 < sequence.integer("n_computed") < fields["n_encoded"]:
        raise sequence.wrong("n_computed", f"0, or at least the {fields['n_encoded']} positions of its prompt")
    return SavedPrompt(ids, n, fields["n_encoded"])


def adapter_set(loras: LoraRegistry, weights: list[tuple[str, float]], files: Fields, label: str) -> LoraSet:
    """Adapters by their digests. Raises SnapshotMismatchError, which names an adapter that is not loaded."""
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
    """Objects that no file can hold, given again by the caller: functions, a chain with functions, a cancel token."""

    chain: SamplerChain | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    criteria: tuple[StoppingCriterion, ...] = ()
    cancel_token: CancelToken | None = None


class TextResumer:
    """Resumption of a saved generation request in an engine."""

    def __init__(self, engine: EngineContext, saved: Contents, label: str, draft: Any = None) -> None:
        self.engine, self.saved, self.label = engine, saved, label
        self.state = Fields(saved.state, label)
        self.given, self.sequence = self.state.sub("text"), self.state.sub("sequence")
        self.tokens = tokens_of(saved, engine.spec.n_vocab, label)
        self.prompt = prompt_of(engine, self.state, self.tokens, label)
        self.n_prompt = self.prompt.n_positions
        self.reader = LogprobReader(label, engine.tokenizer.token_bytes)
        self.drafts = self._drafts(draft)

    def _drafts(self, own: Any) -> DraftOptions:
        """The request's drafts. Raises SnapshotMismatchError for a draft that doesn't fit this engine."""
        drafts = read_drafts(self.given.maybe_sub("speculation"), own, self.label)
        try:
            self.engine.factory.bind(drafts)
        except ConfigError as error:
            raise SnapshotMismatchError(f"{self.label}: {error}") from None
        return drafts

    def resumed(self, own: Given, outbox: ResultQueue, index: int) -> GenerationRequest:
        """The request, which puts its chunks into `outbox`; the chunks not read before are there already."""
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
        """The request's options as saved. Raises SnapshotMismatchError for a context that is too small, and for
        functions that are missing."""
        given, limit = self.given, self.given.integer("limit", self.n_prompt, MAX_CONTEXT)
        if limit > self.engine.context_size:
            raise SnapshotMismatchError(
                f"{self.label}: it continues to {limit} tokens, more than the context_size of this engine, "
                f"{self.engine.context_size}"
            )
        try:
            serving = read_serving(given)
            check_given("stopping_criteria", self.given.maybe_integer("n_criteria"), len(own.criteria), self.label)
            found = TextOptions(
                read_chain_of(self.state.sub("sampler"), self.label, own.chain, len(own.processors)),
                serving,
                self.drafts,
                max_tokens=limit - self.n_prompt,
                stop=tuple(given.texts("stops")),
                stop_token_ids=read_stop_ids(given),
                include_stop="include_stop" in given and given.flag("include_stop"),
                ignore_eos=given.flag("ignore_eos"),
                logits_processors=own.processors,
                stopping_criteria=own.criteria,
                cancel_token=own.cancel_token,
                logprobs=given.maybe_integer("logprobs", 0, MAX_LOGPROBS),
                prompt_logprobs=given.maybe_integer("prompt_logprobs", 0, MAX_LOGPROBS),
                tool_use=read_tool_use(given.maybe_sub("tools"), self.label),
            )
            check_fields(found)
        except ConfigError as error:
            raise SnapshotDamagedError(f"{self.label}: {error}") from None
        return found

    def request(self, options: TextOptions, outbox: ResultQueue, index: int) -> GenerationRequest:
        """A request in the state of the saved one."""
        engine, drawn = self.engine, self.tokens[self.n_prompt :]
        n_computed = self.sequence.integer("n_computed", 0, max(0, len(self.tokens) - 1))
        weights, files = self.sequence.scaled("weights"), self.state.sub("adapters").sub("files")
        adapters = adapter_set(engine.loras, weights, files, self.label)
        number = self.given.integer("number")
        holder: list[GenerationRequest] = []
        try:
            # The saved seed is the completion's own already.
            begin = partial(self.begin, n_computed, holder)
            echo = self.given.maybe_text("echo") or ""
            request = engine.factory.request(self.prompt.ids, options, outbox, index=index, echo=echo, begin=begin)
            seen = self.tokens[self.prompt.n_encoded :]
            data = read_sampler(self.state.sub("sampler"), self.saved.tensors, seen)
            request.go_on(drawn, data, finished=self.given.get("finished") is not None)
        except (ConfigError, GrammarError, ContextOverflowError) as error:
            raise SnapshotDamagedError(f"{self.label}: {error}") from None
        holder.append(request)
        request.number, request.loras, request.sequence.weights = number, adapters, adapters.key
        request.sequence.n_cached = self.given.maybe_integer("n_cached", 0, self.n_prompt)
        self._restore_round(request)
        return request

    def _restore_round(self, request: GenerationRequest) -> None:
        """Restores the round of draft tokens during which the request was saved."""
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
        """Gives the request what was computed; called in the turn that queues it."""
        put(self.engine.core, sequence, self.saved.tensors, n_computed, self.label)
        self.saved.tensors = {}  # of no more use
        request = made.pop()
        request.begin = None  # it would keep the engine alive
        if len(sequence.tokens) > self.n_prompt:
            request.clock.resume(len(sequence.tokens))


# ---- checks of its fields against each other, before anything of it runs

# What follows from its tokens (text that is held back, how much is shown, the place in a grammar) is found by replaying
# them: `check_replayed`. All raise SnapshotDamagedError, which names the field.


def check_text(resumer: TextResumer, chunks: SequenceOf[Chunk]) -> None:
    """Checks the token counts and the unread chunks of a request, before the request is made."""
    given, n, n_prompt = resumer.given, len(resumer.tokens), resumer.n_prompt
    reason = given.get("finished")
    if not (reason is None or isinstance(reason, str)) or reason not in REASONS:
        raise given.wrong("finished", "a reason to finish")
    limit, n_shown = given.integer("limit", n_prompt), given.integer("n_shown", n_prompt, n)
    if limit < n + (reason is None and limit > n_prompt):
        raise given.wrong("limit", f"more than its {n} tokens")
    if reason is not None and (n_shown != n or resumer.sequence.integer("n_computed")):
        raise given.wrong("n_shown", f"{n}, with nothing computed, as it has finished")
    sampler = resumer.state.sub("sampler")
    n_seen = n_prompt - resumer.prompt.n_encoded
    if sampler.integer("n_prompt") != n_seen:
        raise sampler.wrong("n_prompt", f"{n_seen}, the tokens of its prompt")
    _check_ends(resumer, kept=given.get("include_stop") is True and reason == "stop")
    if given.get("echo") and (n_shown > n_prompt or chunks or reason is not None):
        raise given.wrong("echo", "null: a part of the text is there already")
    check_stop("stop", given.texts("stops"))
    _check_chunks(resumer, chunks, n_shown)


def _check_ends(resumer: TextResumer, *, kept: bool) -> None:
    """kept: the last token may be one of `stop_token_ids`, or a stop string, which ended the text and stayed in it."""
    ends, drawn = read_ends(resumer.given, resumer.engine.tokenizer.eog_ids), resumer.tokens[resumer.n_prompt :]
    if kept and drawn and (drawn[-1] in read_stop_ids(resumer.given) or _is_named(resumer, drawn[-1])):
        drawn.pop()
    for i, token in enumerate(drawn):
        if token in ends:
            raise SnapshotDamagedError(f"{resumer.label}: token {i} of its text is {token}, which ends a text")


def _is_named(resumer: TextResumer, token: int) -> bool:
    """Whether the text of a control token is a stop string."""
    return resumer.engine.tokenizer.control_texts.get(token) in resumer.given.texts("stops")


def _check_chunks(resumer: TextResumer, chunks: SequenceOf[Chunk], n_shown: int) -> None:
    given = resumer.given
    number, reason = given.integer("number", 0, MAX_COMPLETIONS - 1), given.get("finished")
    first = n_shown - sum(len(chunk.token_ids) for chunk in chunks)
    for i, chunk in enumerate(chunks):
        name = f"unread[{i}]"
        ids, wanted = chunk.token_ids, reason if i == len(chunks) - 1 else None
        if first < resumer.n_prompt or ids != resumer.tokens[first : first + len(ids)]:
            raise given.wrong("unread", f"the last of its {n_shown - resumer.n_prompt} tokens that were shown")
        if chunk.index != number or chunk.finish_reason != wanted:
            raise given.wrong("unread", f"chunks of completion {number} that end with {reason!r}: {name} is not")
        _check_end(resumer, chunk, name)
        first += len(ids)


def _check_end(resumer: TextResumer, chunk: Chunk, name: str) -> None:
    """Checks the fields of the last chunk, which describe the end of the text."""
    given, stop = resumer.given, chunk.stop_reason
    of_token, of_text = isinstance(stop, int), isinstance(stop, str)
    ends = read_ends(given, resumer.engine.tokenizer.eog_ids)
    known = stop in ends if of_token else stop is None or stop in given.texts("stops")
    if not known or ((of_token or of_text) and chunk.finish_reason != "stop"):
        raise given.wrong("unread", f"what ended the text: {name} says {stop!r:.60}")
    of_end = chunk.end is not None and (chunk.end.token_id == stop or (of_text and chunk.end.token_id in ends))
    if chunk.end is not None and (given.get("logprobs") is None or not of_end):
        raise given.wrong("unread", f"the log-probability of the token that ended the text: {name} has another")
    n_given = len(resumer.prompt.ids)
    n_cached = min(given.maybe_integer("n_cached") or 0, n_given)
    counts = n_given, len(resumer.tokens) - resumer.n_prompt, n_cached
    if chunk.usage is not None and chunk.usage != Usage(*counts):
        raise given.wrong("unread", f"{Usage(*counts)}: {name} says {chunk.usage}")


# ---- log-probabilities


def restore_scores(resumer: TextResumer, request: GenerationRequest, chunks: SequenceOf[Chunk]) -> None:
    """Restores the log-probabilities that the request's options ask for, of computed tokens only."""
    scores, given = request.scores, resumer.given.maybe_sub("scores")
    if (scores is None) != (given is None):
        raise resumer.given.wrong("scores", "there if logprobs or prompt_logprobs ask for them")
    if scores is not None and given is not None:
        _fill(resumer, request, scores, given)
    tokens, prompt = (None, None) if scores is None else (scores.tokens, scores.prompt)
    first = request._n_shown - resumer.n_prompt - sum(len(chunk.token_ids) for chunk in chunks)
    for i, chunk in enumerate(chunks):
        end = first + len(chunk.token_ids)
        of_tokens, of_prompt = None if tokens is None else tokens[first:end], None if first else prompt
        if chunk.logprobs != of_tokens or chunk.prompt_logprobs != of_prompt:
            raise resumer.given.wrong("unread", f"the log-probabilities of the same tokens: unread[{i}] has others")
        first = end


def _fill(resumer: TextResumer, request: GenerationRequest, scores: LogprobRecorder, given: Fields) -> None:
    reader, prompt, drawn = resumer.reader, resumer.tokens[: resumer.n_prompt], resumer.tokens[resumer.n_prompt :]
    found = {name: reader.many(given, name) for name in ("tokens", "prompt")}
    k, prompt_k = (resumer.given.get(name) for name in ("logprobs", "prompt_logprobs"))
    if (found["tokens"] is None) != (k is None) or (found["prompt"] is None) != (prompt_k is None):
        raise given.wrong("tokens", "what logprobs and prompt_logprobs ask for")
    if k is not None and not _are_of(found["tokens"], drawn, k):
        raise given.wrong("tokens", f"log-probabilities of {len(drawn)} tokens, with the {k} likeliest")
    if prompt_k is not None:
        known, n_computed = found["prompt"] or [], resumer.sequence.integer("n_computed")
        # The first prompt token has no log-probability, and tokens that are computed will not be computed again.
        least = 1 + min(n_computed, len(prompt) - 1)
        if known[:1] != [None] or not least <= len(known) or not _are_of(known[1:], prompt[1:], prompt_k, cut=True):
            raise given.wrong("prompt", f"log-probabilities of {least} to {len(prompt)} tokens, the first null")
    scores.tokens, scores.prompt = found["tokens"], found["prompt"]
    sequence = request.sequence
    sequence.every_row = scores.wants_prompt(sequence)
    request.want = "all" if sequence.every_row else "last"


def _are_of(found: Any, tokens: list[int], k: int, *, cut: bool = False) -> bool:
    """Whether log-probabilities are of these tokens, or of the first of them, with at most the k likeliest."""
    if len(found) > len(tokens) or (len(found) < len(tokens) and not cut):
        return False
    return all(
        isinstance(p, TokenLogprob) and p.token_id == token and len(p.top) <= k
        for p, token in zip(found, tokens, strict=False)
    )


# ---- state that follows from the tokens


def check_replayed(resumer: TextResumer, request: GenerationRequest) -> None:
    """Checks that the state replayed from the tokens of a request is the one that was saved."""
    given, grammar = resumer.given, request.sampler.memory.grammar
    if request.stopped:
        raise given.wrong("stops", "none that its text has already")
    found, steps = request.progress(), None if grammar is None else len(grammar.state())
    for name in ("limit", "held", "utf8", "n_shown"):
        if type(found[name]) is not type(given.get(name)) or found[name] != given[name]:
            raise given.wrong(name, f"{found[name]!r:.60}, as its tokens say,")
    if steps != resumer.state.sub("sampler").maybe_integer("grammar_steps"):
        raise SnapshotDamagedError(f"{resumer.label}: the state of its grammar is not the one that its tokens lead to")


def check_together(resumers: SequenceOf[TextResumer]) -> None:
    """The completions of one prompt: all are of the same, and each has its number."""
    first = resumers[0]
    for i, one in enumerate(resumers):
        if one.prompt != first.prompt:
            raise SnapshotDamagedError(f"{one.label}: its completions are of several prompts")
        if len(resumers) > 1 and one.given.integer("number") != i:
            raise one.given.wrong("number", f"{i}, its place among the completions,")
