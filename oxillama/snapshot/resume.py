"""Resumption of saved requests and sessions in an engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, TypedDict

from oxillama._util.checks import check_type
from oxillama._util.json_fields import Fields
from oxillama._util.places import Place
from oxillama._util.threads import in_thread
from oxillama.config import SamplerConfig
from oxillama.core.async_requests import AsyncChunks, Call, CoroutineBell
from oxillama.core.beam_rounds import BeamRounds
from oxillama.core.conversation import Conversation
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import Criteria, ServingOptions, check_criteria
from oxillama.core.request import ResultQueue
from oxillama.core.results import CancelToken
from oxillama.core.session import Session
from oxillama.core.text_stream import Chunks
from oxillama.errors import (
    ConfigError,
    GrammarError,
    SnapshotDamagedError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.lora import LoraSet
from oxillama.sampling import LogitsProcessor, Sampler, SamplerChain
from oxillama.sampling.sampler import check_processors
from oxillama.scheduling.sequence import Sequence
from oxillama.snapshot.beam_state import BeamResumer
from oxillama.snapshot.bundle import Bundle, interleave, open_bundle
from oxillama.snapshot.capture import SnapshotWriter
from oxillama.snapshot.engine_snapshots import writer_of
from oxillama.snapshot.format.reader import Contents, OpenSnapshot, open_snapshot
from oxillama.snapshot.request_state import read_chain_of, read_sampler
from oxillama.snapshot.resume_request import Given, TextResumer, adapter_set, check_together, tokens_of
from oxillama.snapshot.sequences import put

if TYPE_CHECKING:
    from oxillama.core.context import EngineContext
    from oxillama.core.draft_options import DraftLike

__all__ = [
    "ResumeOptions",
    "fill_session",
    "load_saved",
    "resumed",
]

KINDS = ("session", "conversation", "text", "beam")

log = logging.getLogger("oxillama")


class ResumeOptions(TypedDict, total=False):
    """Keywords of `resume`; `resumed` says what they mean."""

    sampler: SamplerConfig | SamplerChain | None
    logits_processors: SequenceOf[LogitsProcessor] | None
    stopping_criteria: Criteria
    cancel_token: CancelToken | None
    draft: DraftLike


def resumed(
    engine: EngineContext,
    place: Place | OpenSnapshot,
    *,
    sampler: SamplerConfig | SamplerChain | None = None,
    logits_processors: Any = None,
    stopping_criteria: Any = None,
    cancel_token: CancelToken | None = None,
    draft: Any = None,
) -> Chunks | Session | Conversation | BeamRounds:
    """Resumes what `Engine.resume` goes on with.

    sampler, logits_processors, stopping_criteria: functions of the caller's own, which no file can hold, given again;
        `sampler` is a chain with the same stages. Of a session, those of its sampler.
    cancel_token: lets another thread stop it.
    draft: source of draft tokens from here on, as for `generate`, with the options of the request. Without it,
        "lookup" and "grammar" go on by themselves; a draft of the caller's own is missed, which is logged, and costs
        time alone. With acceptance="rejection" the text depends on it: it must be given, and be the same.
    """
    given = _given(sampler, logits_processors, stopping_criteria, cancel_token)
    found, label, parts = _loaded(engine, place)
    kind = parts.kind or found[0].state["kind"]
    if kind != "text" and (draft is not None or stopping_criteria is not None):
        raise ConfigError(f"stopping_criteria and draft are for requests for text; this is of a {kind}")
    if kind not in ("text", "session") and (sampler is not None or logits_processors is not None):
        raise ConfigError(f"sampler and logits_processors are for requests for text and sessions; this is of a {kind}")
    if kind == "beam":
        return BeamResumer(engine, found, parts.state, label).resumed(cancel_token)
    if kind != "text" and cancel_token is not None:
        raise ConfigError(f"cancel_token is for requests; this is of a {kind}")
    if kind == "conversation":
        conversation = Conversation(engine.core, engine.factory, engine.snapshots)
        fill_conversation(engine, conversation, found[0], label)
        return conversation
    if kind == "session":
        session = Session(engine.core, engine.factory, ServingOptions(cache_prompt=False), engine.snapshots)
        fill_session(engine, session, found[0], label, given)
        return session
    resumers = [TextResumer(engine, saved, label, draft) for saved in found]
    requests, outbox = _requests(resumers, parts, given)
    return Chunks(engine.core, lambda: requests, outbox, cancel_token, engine.snapshots)


def _requests(
    resumers: list[TextResumer], parts: Bundle, given: Given, bell: CoroutineBell | None = None
) -> tuple[list[GenerationRequest], ResultQueue]:
    """The resumed requests, and the queue of their chunks."""
    outbox = ResultQueue(0, bell)
    check_together(resumers)
    requests = [one.resumed(given, outbox, i) for i, one in enumerate(resumers)]
    outbox.items = interleave(outbox.items, parts.state, resumers[0].label)
    return requests, outbox


async def resume_async(engine: EngineContext, place: Place, options: dict[str, Any]) -> AsyncChunks:
    """`AsyncEngine.resume`."""
    bell = CoroutineBell(engine.core.loop)

    def load(draft: Any = None, **functions: Any) -> tuple[list[GenerationRequest], ResultQueue]:
        given = _given(**functions)
        found, label, parts = _loaded(engine, place)
        if found[0].state["kind"] != "text":
            raise SnapshotFormatError(f"{label}: it is of a {found[0].state['kind']}: resume it with Engine.resume")
        resumers = [TextResumer(engine, saved, label, draft) for saved in found]
        return _requests(resumers, parts, given, bell)

    requests, outbox = await in_thread(load, **options)

    async def start() -> Call[GenerationRequest]:
        return Call(engine.core, requests, outbox, bell)

    return AsyncChunks(start, engine.snapshots)


def _loaded(engine: EngineContext, place: Place | OpenSnapshot) -> tuple[list[Contents], str, Bundle]:
    """Reads the saved contents, of what goes on together each; and what is said of all."""
    engine.core.check_generates()
    snapshot = open_snapshot(place)
    try:
        bundle = open_bundle(snapshot)
        found = [load_saved(writer_of(engine), part) for part in bundle.parts]
    finally:
        snapshot.close()
    if bundle.kind and any(saved.state["kind"] != bundle.kind for saved in found):
        raise SnapshotDamagedError(f"{snapshot.label}: not all that it holds are of kind {bundle.kind!r}")
    return found, snapshot.label, bundle


def _given(
    sampler: Any = None, logits_processors: Any = None, stopping_criteria: Any = None, cancel_token: Any = None
) -> Given:
    """Checks what a caller gives again. Raises ConfigError for anything else."""
    if sampler is not None:
        check_type("sampler", sampler, SamplerConfig, SamplerChain)
    if cancel_token is not None:
        check_type("cancel_token", cancel_token, CancelToken)
    chain = SamplerChain.from_config(sampler) if isinstance(sampler, SamplerConfig) else sampler
    processors = check_processors("logits_processors", logits_processors)
    return Given(chain, processors, check_criteria("stopping_criteria", stopping_criteria), cancel_token)


def load_saved(writer: SnapshotWriter, snapshot: OpenSnapshot) -> Contents:
    """The contents of a snapshot, checked against an engine. Raises SnapshotError's children."""
    label = snapshot.label
    if snapshot.is_version1:
        from oxillama.snapshot.v1_convert import to_saved

        return to_saved(writer, snapshot.version1, label)
    if snapshot.is_speculative_version1:
        raise SnapshotFormatError(f"{label}: it is of a speculative engine, two models in one: not for this one")
    reader = snapshot.reader
    kind = reader.state.text("kind")
    if kind not in KINDS:
        raise SnapshotFormatError(f"{label}: it is of kind {kind!r}; this engine resumes {' and '.join(KINDS)}")
    writer.check(reader)
    written = reader.state.maybe_text("arithmetic")
    if written != writer.arithmetic:
        by = f"kernels for {reader.state.text('tier')}" if written is None else written
        log.warning("%s was computed with %s: here, with %s, digits may differ", label, by, writer.arithmetic)
    return reader.saved(writer.expecting(label))


def _sequence_of(engine: EngineContext, saved: Contents, label: str) -> tuple[list[int], int, LoraSet]:
    """Tokens, how many of them are computed, and with which adapters. Raises SnapshotError's children."""
    state = Fields(saved.state, label)
    tokens, given = tokens_of(saved, engine.spec.n_vocab, label), state.sub("sequence")
    n_computed = given.integer("n_computed", 0, len(tokens))
    given.integer("n_prompt", 0, len(tokens))
    if len(tokens) > engine.context_size:
        raise SnapshotMismatchError(
            f"{label}: its {len(tokens)} tokens are more than the context_size of this engine, {engine.context_size}"
        )
    files = state.sub("adapters").sub("files")
    return tokens, n_computed, adapter_set(engine.loras, given.scaled("weights"), files, label)


def _fill(engine: EngineContext, sequence: Sequence, saved: Contents, label: str, n_computed: int) -> None:
    """Gives a sequence, in a turn of the loop, what is saved of its tokens. If that fails it is empty."""
    sequence.cache_key, sequence.untrusted = None, True
    sequence.n_prompt = sequence.n_reserve = len(sequence.tokens)
    try:
        put(engine.core, sequence, saved.tensors, n_computed, label)
    except Exception:
        sequence.tokens.clear()
        raise


def fill_conversation(engine: EngineContext, conversation: Conversation, saved: Contents, label: str) -> None:
    """Puts what was saved into a dialogue that is new. Raises SnapshotError's children."""
    tokens, n_computed, adapters = _sequence_of(engine, saved, label)
    messages = Fields(saved.state, label).items_of("messages")

    def fill() -> None:
        sequence = conversation._memory.sequence
        sequence.tokens[:], sequence.weights = tokens, adapters.key
        _fill(engine, sequence, saved, label, n_computed)

    writer_of(engine).between_steps(fill)
    conversation.messages = messages


NOTHING_GIVEN = Given()


def fill_session(
    engine: EngineContext, session: Session, saved: Contents, label: str, given: Given = NOTHING_GIVEN
) -> None:
    """Puts what was saved into a session that is empty. Raises SnapshotError's children, and then it stays empty."""
    state = Fields(saved.state, label)
    tokens, n_computed, adapters = _sequence_of(engine, saved, label)
    weights = state.sub("sequence").scaled("weights")
    own = state.maybe_sub("session") or Fields({"lora": _by_name(engine, weights)}, label)
    own.maybe_text("cache_salt")
    try:
        serving = ServingOptions(cache_prompt=False, lora=own.get("lora"))
        same = tokens == [] or engine.loras.select(serving.lora).key == adapters.key
    except ConfigError as error:
        raise SnapshotMismatchError(f"{label}: adapters of its session: {error}") from None
    if not same:
        raise SnapshotMismatchError(
            f"{label}: the adapters that apply to its session are other ones here: load and push the same as before"
        )
    sampler, follows = session_sampler(engine, saved, state, label, given)
    logits = saved.tensors.get("logits")
    if logits is not None and len(logits.data) != engine.spec.n_vocab:
        raise SnapshotDamagedError(f"{label}: its logits are of {len(logits.data)} tokens, not {engine.spec.n_vocab}")

    def fill() -> None:
        sequence = session._sequence
        sequence.tokens[:], sequence.weights = tokens, adapters.key
        _fill(engine, sequence, saved, label, n_computed)

    writer_of(engine).between_steps(fill)
    session._serving, session.sampler = serving, sampler
    session._sampling.follows = follows
    session._logits = None if logits is None else (logits.array.copy(), len(tokens))


def _by_name(engine: EngineContext, weights: list[tuple[str, float]]) -> list[tuple[str, float]] | None:
    """A request's adapters as a session asks for them; None for those that are pushed, if one has no name."""
    names = {lora.digest: name for name, lora in engine.loras.named.items()}
    return [(names[digest], scale) for digest, scale in weights] if names.keys() >= dict(weights).keys() else None


def session_sampler(
    engine: EngineContext, saved: Contents, state: Fields, label: str, own: Given
) -> tuple[Sampler | None, bool]:
    """Sampler that a session had with it, if any, and whether it goes with its tokens."""
    given = state.maybe_sub("sampler")
    if given is None or "text" in state:
        if own.chain is not None or own.processors:
            raise ConfigError(f"{label}: its session had no sampler: give none")
        return None, False
    if "history" not in saved.tensors:
        raise SnapshotDamagedError(f"{label}: the tokens of its sampler are missing")
    history = saved.tensors["history"].array.tolist()
    if any(not 0 <= token < engine.spec.n_vocab for token in history):
        raise SnapshotDamagedError(f"{label}: tokens of its sampler are not all from 0 to {engine.spec.n_vocab - 1}")
    follows = "follows" in given and given.flag("follows")
    if follows and saved.tensors["tokens"].array[: len(history)].tolist() != history:
        raise SnapshotDamagedError(f"{label}: its sampler goes with other tokens than it has")
    chain = read_chain_of(given, label, own.chain, len(own.processors))
    data = read_sampler(given, saved.tensors, history)
    try:
        sampler = engine.factory.sampler(chain, history[: data["n_prompt"]], own.processors)
        sampler.memory.restore(data)
        return sampler, follows
    except (ConfigError, GrammarError) as error:
        raise SnapshotDamagedError(f"{label}: its sampler: {error}") from None
