"""From a snapshot to a session, or a request for text, that goes on with it in a running engine."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from oxillama.checks import MAX_CONTEXT
from oxillama.config import SamplerConfig
from oxillama.engine.completions import Chunks
from oxillama.engine.logprobs import MAX_LOGPROBS
from oxillama.engine.request import Outbox
from oxillama.engine.serving import ServingOptions
from oxillama.engine.session import Session
from oxillama.engine.stream import TextRequest
from oxillama.engine.texts import TextOptions
from oxillama.errors import (
    ConfigError,
    ContextOverflowError,
    GrammarError,
    SnapshotDamagedError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.kernels._table import tier
from oxillama.lora import LoraRegistry, LoraSet
from oxillama.lora.registry import combined
from oxillama.sampling import LogitsProcessor, Sampler, SamplerChain
from oxillama.sampling.sampler import check_processors
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.maker import SnapshotMaker
from oxillama.snapshot.saved import Reader, Saved
from oxillama.snapshot.sequences import UNKNOWN, put
from oxillama.snapshot.sources import Place, Source, open_source
from oxillama.snapshot.texts import LogprobReader, read_chain_of, read_chunks, read_sampler, read_tool_use
from oxillama.snapshot.version1 import SPEC_MAGIC

if TYPE_CHECKING:
    from oxillama.engine.engine import Engine
    from oxillama.engine.results import CancelToken
    from oxillama.engine.sequence import Sequence

__all__ = ["fill_session", "load_saved", "resumed"]

KINDS = ("session", "text")

log = logging.getLogger("oxillama")


def resumed(
    engine: Engine,
    place: Place,
    sampler: SamplerConfig | SamplerChain | None,
    processors: Any,
    cancel_token: CancelToken | None,
) -> Chunks | Session:
    """`Engine.resume`."""
    engine._core.check_generates()
    source = open_source(place)
    try:
        saved, label = load_saved(engine._snapshots, source), source.label
    finally:
        source.close()
    if saved.state["kind"] == "session":
        if sampler is not None or processors is not None or cancel_token is not None:
            raise ConfigError("sampler, logits_processors and cancel_token are for requests; this is of a session")
        session = engine.session(cache_prompt=False)
        fill_session(engine, session, saved, label)
        return session
    chain = sampler if sampler is None or isinstance(sampler, SamplerChain) else SamplerChain.from_config(sampler)
    return TextResumer(engine, saved, label).chunks(chain, check_processors(processors), cancel_token)


def load_saved(maker: SnapshotMaker, source: Source) -> Saved:
    """All that a snapshot holds, checked against an engine. Raises SnapshotError's children."""
    if is_version1(source):
        from oxillama.snapshot.version1_engine import to_saved

        return to_saved(maker, bytes(source.read(0, source.n_bytes)), source.label)
    if bytes(source.read(0, min(8, source.n_bytes))) == SPEC_MAGIC:
        raise SnapshotFormatError(f"{source.label}: it is of a speculative engine, two models in one: not for this one")
    reader = Reader(source)
    kind = reader.state.text("kind")
    if kind not in KINDS:
        raise SnapshotFormatError(f"{source.label}: it is of kind {kind!r}; this engine resumes {' and '.join(KINDS)}")
    maker.check(reader)
    written = reader.state.text("tier")
    if written != tier():
        log.warning(
            "%s was written with kernels for %s: here, with %s, digits may differ", source.label, written, tier()
        )
    return reader.saved(maker.expecting(source.label))


def is_version1(source: Source) -> bool:
    """Whether it begins like a file of the original: its version is a number of variable length."""
    return bytes(source.read(0, min(9, source.n_bytes))) == b"OXISNAP1\x01"


def tokens_of(saved: Saved, n_vocab: int, label: str) -> list[int]:
    """Checked. Raises SnapshotDamagedError."""
    rows = saved.tensors.get("tokens")
    tokens: list[int] = [] if rows is None else rows.data.tolist()
    least = UNKNOWN if saved.state.get("unknown_tokens") else 0
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
    found = combined((loras.bind(known[digest]), scale) for digest, scale in weights)
    if list(found.key) != weights:
        raise SnapshotDamagedError(f"{label}: its adapters are not in order")
    return found


def fill_session(engine: Engine, session: Session, saved: Saved, label: str) -> None:
    """Puts what was saved into a session that is empty. Raises SnapshotError's children, and then it stays empty."""
    state = Fields(saved.state, label)
    tokens, given = tokens_of(saved, engine.n_vocab, label), state.sub("sequence")
    n_computed = given.integer("n_computed", 0, len(tokens))
    if len(tokens) > engine.context_size:
        raise SnapshotMismatchError(
            f"{label}: its {len(tokens)} tokens are more than the context_size of this engine, {engine.context_size}"
        )
    own = state.maybe_sub("session") or Fields({}, label)
    weights = given.scaled("weights")
    adapters = adapter_set(engine._loras, weights, state.sub("adapters").sub("files"), label)
    try:
        serving = ServingOptions(cache_prompt=False, lora=own.get("lora"))
        same = tokens == [] or engine._loras.select(serving.lora).key == adapters.key
    except ConfigError as error:
        raise SnapshotMismatchError(f"{label}: adapters of its session: {error}") from None
    if not same:
        raise SnapshotMismatchError(
            f"{label}: the adapters that apply to its session are other ones here: load and push the same as before"
        )
    sampler = session_sampler(engine, saved, state, label)
    logits = saved.tensors.get("logits")
    if logits is not None and len(logits.data) != engine.n_vocab:
        raise SnapshotDamagedError(f"{label}: its logits are of {len(logits.data)} tokens, not {engine.n_vocab}")

    def fill() -> None:
        sequence = session._sequence
        sequence.tokens[:], sequence.weights, sequence.cache_key = tokens, adapters.key, None
        sequence.n_prompt = sequence.n_reserve = len(tokens)
        try:
            put(engine._core, sequence, saved.tensors, n_computed, label)
        except Exception:
            sequence.tokens.clear()
            raise

    engine._snapshots.turn(fill)
    session._serving, session.sampler = serving, sampler
    session._logits = None if logits is None else (logits.data.copy(), len(tokens))


def session_sampler(engine: Engine, saved: Saved, state: Fields, label: str) -> Sampler | None:
    """The one that a session had with it, if any."""
    given = state.maybe_sub("sampler")
    if given is None or "text" in state:
        return None
    if "history" not in saved.tensors:
        raise SnapshotDamagedError(f"{label}: the tokens of its sampler are missing")
    chain = read_chain_of(given, label, None, 0)
    data = read_sampler(given, saved.tensors, saved.tensors["history"].data.tolist())
    try:
        grammar = engine._maker.plain_sampler(chain).memory.grammar
        return Sampler.from_state(data, chain, grammar=grammar, token_bytes=engine.tokenizer.token_bytes)
    except (ConfigError, GrammarError) as error:
        raise SnapshotDamagedError(f"{label}: its sampler: {error}") from None


class TextResumer:
    """A saved request for text on its way into an engine."""

    def __init__(self, engine: Engine, saved: Saved, label: str) -> None:
        self.engine, self.saved, self.label = engine, saved, label
        self.state = Fields(saved.state, label)
        self.given, self.sequence = self.state.sub("text"), self.state.sub("sequence")
        self.tokens = tokens_of(saved, engine.n_vocab, label)
        self.n_prompt = self.sequence.integer("n_prompt", 1, max(1, len(self.tokens)))
        self.reader = LogprobReader(label, engine.tokenizer.token_bytes)

    def chunks(
        self, own: SamplerChain | None, processors: tuple[LogitsProcessor, ...], cancel_token: CancelToken | None
    ) -> Chunks:
        """Those that nobody has read, and those to come."""
        engine, unread = self.engine, read_chunks(self.given, self.reader, self.label)
        finished = self.given.get("finished") is not None
        outbox = Outbox(0 if finished else 1)
        outbox.items.extend((0, chunk) for chunk in unread)
        if finished:
            return Chunks(engine._core, list, outbox, cancel_token)
        request = self.request(self.options(own, processors, cancel_token), outbox)
        return Chunks(engine._core, lambda: [request], outbox, cancel_token, engine._snapshots)

    def options(
        self, own: SamplerChain | None, processors: tuple[LogitsProcessor, ...], cancel_token: CancelToken | None
    ) -> TextOptions:
        """As the request was made with. Raises SnapshotMismatchError for a context that is too small."""
        given, limit = self.given, self.given.integer("limit", self.n_prompt + 1, MAX_CONTEXT)
        if limit > self.engine.context_size:
            raise SnapshotMismatchError(
                f"{self.label}: it goes on to {limit} tokens, more than the context_size of this engine, "
                f"{self.engine.context_size}"
            )
        left = None if given.get("seconds_left") is None else given.number("seconds_left")
        try:
            serving = ServingOptions(given.integer("priority"), left, cache_prompt=False, lora=())
        except ConfigError as error:
            raise SnapshotDamagedError(f"{self.label}: {error}") from None
        return TextOptions(
            limit - self.n_prompt, tuple(given.texts("stops")), given.flag("ignore_eos"),
            read_chain_of(self.state.sub("sampler"), self.label, own, len(processors)), cancel_token, serving,
            processors, given.maybe_integer("logprobs", 0, MAX_LOGPROBS),
            given.maybe_integer("prompt_logprobs", 0, MAX_LOGPROBS),
            tool_use=read_tool_use(given.maybe_sub("tools"), self.label),
        )  # fmt: skip

    def request(self, options: TextOptions, outbox: Outbox) -> TextRequest:
        """One that goes on where the other one was when it was saved."""
        engine, prompt, drawn = self.engine, self.tokens[: self.n_prompt], self.tokens[self.n_prompt :]
        n_computed = self.sequence.integer("n_computed", 0, max(0, len(self.tokens) - 1))
        weights, files = self.sequence.scaled("weights"), self.state.sub("adapters").sub("files")
        adapters = adapter_set(engine._loras, weights, files, self.label)
        number = self.given.integer("number", 0, MAX_CONTEXT)
        holder: list[TextRequest] = []
        try:
            # Its seed is its own already.
            request = engine._maker.request(prompt, options, outbox, begin=partial(self.begin, n_computed, holder))
            data = read_sampler(self.state.sub("sampler"), self.saved.tensors, self.tokens)
            request.go_on(drawn, data, self.given.integer("n_shown", self.n_prompt, len(self.tokens)))
        except (ConfigError, GrammarError, ContextOverflowError) as error:
            raise SnapshotDamagedError(f"{self.label}: {error}") from None
        holder.append(request)
        request.number, request.loras, request.sequence.weights = number, adapters, adapters.key
        self._restore_scores(request)
        self._check_replayed(request)
        return request

    def _restore_scores(self, request: TextRequest) -> None:
        scores, given = request.scores, self.given.maybe_sub("scores")
        if scores is None or given is None:
            return
        tokens, prompt = self.reader.many(given, "tokens"), self.reader.many(given, "prompt")
        n_drawn = len(self.tokens) - self.n_prompt
        if (scores.tokens is None) != (tokens is None) or (scores.prompt is None) != (prompt is None):
            raise given.wrong("tokens", "what logprobs and prompt_logprobs ask for")
        if tokens is not None and (len(tokens) != n_drawn or None in tokens):
            raise given.wrong("tokens", f"log-probabilities of {n_drawn} tokens")
        if prompt is not None and not 1 <= len(prompt) <= self.n_prompt:
            raise given.wrong("prompt", f"log-probabilities of at most {self.n_prompt} tokens")
        scores.tokens, scores.prompt = tokens, prompt
        request.want = "all" if scores.wants_prompt(request.sequence) else "last"

    def _check_replayed(self, request: TextRequest) -> None:
        """The state that follows from the tokens must be the one that was saved."""
        found, grammar = request.progress(), request.sampler.memory.grammar
        steps = None if grammar is None else len(grammar.state())
        for name in ("limit", "held", "utf8"):
            if found[name] != self.given.get(name):
                raise self.given.wrong(name, f"{found[name]!r:.60}, as its tokens say,")
        if steps != self.state.sub("sampler").maybe_integer("grammar_steps"):
            raise SnapshotDamagedError(f"{self.label}: its place in the grammar is not where its tokens lead")

    def begin(self, n_computed: int, made: list[TextRequest], sequence: Sequence) -> None:
        """In the turn that queues it: gives it what was computed."""
        put(self.engine._core, sequence, self.saved.tensors, n_computed, self.label)
        self.saved.tensors = {}  # of no more use
        request = made.pop()
        if len(sequence.tokens) > self.n_prompt:
            request.first_at = request.counted_at = time.perf_counter()
            request.n_counted = len(sequence.tokens)
