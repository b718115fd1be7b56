"""Draft model: a second model that proposes draft tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from oxillama._util.pickling import OpenedOnce
from oxillama.config import EngineConfig, EngineOptions, ModelSource
from oxillama.core.context import LoadedEngine, ModelTicket, context_of, ticket_of_model
from oxillama.core.loading import EngineParts, config_beside, load_parts, located, make_config, parts_beside
from oxillama.drafts.draft import DraftTask, Proposal, Target
from oxillama.errors import ConfigError, EngineClosedError, UnsupportedModelError
from oxillama.speculative.draft_core import DraftCore
from oxillama.tokenizer import Tokenizer

__all__ = [
    "DraftModel",
    "OwnDraft",
    "Source",
    "check_same_vocabulary",
    "first_difference",
    "parts_of",
]


T = TypeVar("T")


def first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The first token with different bytes, special in only one tokenizer, or missing in one; None without any."""
    if one is other:
        return None
    n = min(one.n_vocab, other.n_vocab)
    for token in range(n):
        if _content(one, token) != _content(other, token):
            return token
    return None if one.n_vocab == other.n_vocab else n


def check_same_vocabulary(draft: Tokenizer, target: Tokenizer) -> None:
    """Raises ConfigError, which names the first token that differs, unless draft and model have the same ids."""
    token = first_difference(draft, target)
    if token is not None:
        raise ConfigError(
            f"the draft's vocabulary is not the model's: token {token} is {_shown(draft, token)} for the draft and "
            f"{_shown(target, token)} for the model; give a draft with the same tokenizer"
        )


def _content(tokenizer: Tokenizer, token: int) -> tuple[bytes, bool]:
    return tokenizer.token_bytes(token), tokenizer.is_special(token)


def _shown(tokenizer: Tokenizer, token: int) -> str:
    if token >= tokenizer.n_vocab:
        return f"beyond the last of {tokenizer.n_vocab}"
    raw, special = _content(tokenizer, token)
    return f"{'the special token ' if special else ''}{raw!r}"


Source = ModelSource | LoadedEngine


def parts_of(model: Source, parts: EngineParts | None, fields: Mapping[str, Any]) -> tuple[EngineConfig, EngineParts]:
    """Raises ConfigError, LoadError and its children, TypeError for an unknown field."""
    if (loaded := context_of(model)) is not None:
        config = config_beside(loaded, fields)
        parts = parts or parts_beside(loaded, config)
    else:
        config = located(make_config("DraftModel", None, {"model_path": model, **fields}), parts)
        parts = parts or load_parts(config)
    if not parts.spec.causal:
        raise UnsupportedModelError(
            f"architecture {parts.spec.arch} reads texts whole and predicts no next token: it can't be a draft"
        )
    if parts.spec.decoder_start is not None:
        raise UnsupportedModelError(
            f"architecture {parts.spec.arch} reads prompts with an encoder: it can't be a draft of another text"
        )
    return config, parts


DRAFTS: OpenedOnce[Any] = OpenedOnce()


class DraftModel:
    """A model that drafts tokens for another one with the same vocabulary. Use with `with`, or call `close`.

    It draws with the state of the request's own sampler, so that a draft token often is what the model draws then, at
    any temperature; the user's own processors and stages are left out. Requests are drafted in one batch. No token of a
    sequence is computed twice, unless its keys and values were evicted, least recently used first, when `kv_budget`
    was full. Adapters of requests are not applied to the draft model, only to the model that verifies.

    Any number of engines and threads may use one. Its pickle says how it was loaded, as that of an `Engine` does, and a
    copy is the draft model itself. n_computed: tokens that it has computed. n_guessed: tokens that it has drawn.
    config: its settings. identity: that of its file.
    """

    def __init__(
        self, model: Source = None, *, parts: EngineParts | None = None, **fields: Unpack[EngineOptions]
    ) -> None:
        """A GGUF file as a path or bytes, the model that ships with the package (None), or a loaded `Engine`.

        fields: of `EngineConfig`. With an engine, its weights are shared, also after it is closed, and its settings are
        the defaults; fields that loading needs can't be given then. parts: used instead of loading.

        Raises ConfigError, LoadError and its children, TypeError for an unknown field.
        """
        self.config, self._parts = parts_of(model, parts, fields)
        parts = self._parts
        self.tokenizer, self.context_size, self.identity = parts.tokenizer, parts.context_size, parts.identity
        self._core = DraftCore(parts, self.config)

    def __reduce__(self) -> tuple[Any, ...]:
        self._core.check_open()
        ticket = ticket_of_model(type(self), self.config, self.identity, self._parts.tokenizer_identity)
        DRAFTS.register(ticket.key, self)
        return reopened_draft, (ticket,)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    # ---- the protocol

    def bind(self, target: Target) -> None:
        """Raises ConfigError, which names the first token that differs, unless the model has the same vocabulary.

        Raises UnsupportedModelError for an engine whose prompts an encoder reads, which a draft model can't.
        """
        if getattr(target, "encodes", False):  # any object with a target's other fields will do, such as an engine
            raise UnsupportedModelError(
                "a draft model can't read the prompts of an engine with an encoder: its drafts are 'lookup' and "
                "'grammar'"
            )
        check_same_vocabulary(self.tokenizer, target.tokenizer)
        self._core.change(lambda: self._core.ids.add(target))

    def propose(self, tasks: SequenceOf[DraftTask], stopped: Callable[[], bool] | None = None) -> list[Proposal]:
        """Draft tokens for each task; fewer than wanted at the end of the context, or without room; none yet for a long
        new sequence while others would have to wait for it.

        stopped: polled now and then; once it is true, the tokens drafted so far are returned. Raises EngineClosedError,
        and GenerateError if the model computes NaN.
        """
        return self._core.change(lambda: self._core.draft(tasks, stopped))

    def forget(self, key: int) -> None:
        """Frees the KV of a sequence: now, or after a running proposal."""
        self._core.post(lambda: self._core.sequences.forget(key))

    # ---- drafting ahead

    def agrees(self, task: DraftTask) -> bool:
        """Whether the task's tokens agree with the draft tokens, as far as either reach. For any thread."""
        text = self._core.sequences.find(task.key)
        return text is not None and text.agrees(task.tokens)

    def beyond(self, task: DraftTask, n: int) -> DraftTask | None:
        """A task of n tokens more, as if all draft tokens of this task were accepted; None if the text would end.

        It has a sampler of its own. Call this before another proposal for the sequence.
        """
        text = self._core.sequences.find(task.key)
        if text is None or len(text.marks) < 2 or text.sequence.tokens[-1] in self._core.ids.ends:
            return None
        sampler = task.sampler.copy()
        memory = sampler.memory
        for token, mark in zip(text.drafted, text.marks[1:], strict=True):
            memory.rng.state, memory.mu = mark
            sampler.accept(token)
        return DraftTask(task.key, list(text.sequence.tokens), n, sampler, cache_key=task.cache_key)

    # ---- life

    def post(self, change: Callable[[], object]) -> None:
        """Runs a short change, also of a closed model: now, or after a running proposal."""
        self._core.post(change)

    def turn(self, action: Callable[[], T]) -> T:
        """Result of an action that runs while no other does. Raises EngineClosedError, and what the action raises."""
        return self._core.change(action)

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def n_computed(self) -> int:
        return self._core.n_computed

    @property
    def n_guessed(self) -> int:
        return self._core.n_drawn

    @property
    def num_threads(self) -> int:
        """Number of compute threads."""
        return self._core.runner.num_threads

    @property
    def reach(self) -> int:
        """Largest number of tokens of a sequence."""
        return self._core.reach

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by part, as in `Engine.memory_bytes`; weights shared with an engine count there too."""
        return self._core.runner.memory_bytes()

    def check_files(self) -> None:
        """Raises ModelFileError if the model's file was changed since it was opened, and is still read or mapped."""
        self._core.runner.check_files()

    def close(self) -> None:
        """Frees the model, after a running proposal; further calls do nothing."""
        with suppress(EngineClosedError):
            self._core.change(self._free)

    def _free(self) -> None:
        self._core.free()
        DRAFTS.forget(self)

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._core.sequences)} texts"
        return f"<DraftModel {self._parts.spec.arch} {self._parts.spec.name!r}, {state}>"


def reopened_draft(ticket: ModelTicket) -> DraftModel:
    """The draft model of a ticket: the one open in this process, or else a newly loaded one. Raises what `DraftModel`
    raises, PickleError if the file is not that of the pickled draft."""

    def opened() -> DraftModel:
        fields = {f.name: getattr(ticket.config, f.name) for f in dataclasses.fields(ticket.config)}
        draft: DraftModel = ticket.kind(fields.pop("model_path"), **fields)
        try:
            ticket.check(draft.identity, draft._parts.tokenizer_identity)
        except BaseException:
            draft.close()
            raise
        return draft

    found: DraftModel = DRAFTS.get(ticket.key, opened, lambda draft: not draft.closed)
    return found


class OwnDraft:
    """The draft model that shares an engine's weights: one at most, which is closed with the engine."""

    def __init__(self) -> None:
        self._kept: dict[str, DraftModel] = {}  # no lock: `setdefault` and `pop` of a str are atomic

    def get(self, engine: LoadedEngine) -> DraftModel:
        """Draft model, the same one each time. Raises EngineClosedError, GenerateError or UnsupportedModelError for an
        encoder."""
        engine.context.core.check_open()
        found = self._kept.get("draft")
        if found is None:
            made = DraftModel(engine)
            found = self._kept.setdefault("draft", made)
            if found is not made:  # another thread's call came first
                made.close()
        if engine.closed:
            self.close()
        return found

    def close(self) -> None:
        """Closes it, if it was made."""
        if (draft := self._kept.pop("draft", None)) is not None:
            draft.close()
