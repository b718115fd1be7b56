"""`SpeculativeEngine`: an engine and a draft for it, as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, Unpack

from oxillama._util.checks import check_keywords, given_of, overlaid
from oxillama._util.places import Path
from oxillama.config import EngineOptions, ModelSource, SamplerConfig
from oxillama.core.batch import Batch
from oxillama.core.beam_rounds import BeamRounds
from oxillama.core.conversation import Conversation
from oxillama.core.draft_options import NAMED, DraftOptions
from oxillama.core.options import Prompt, PromptOptions
from oxillama.core.prompts import Messages
from oxillama.core.session import Session
from oxillama.core.text_stream import Chunks
from oxillama.drafts.draft import Draft, SpecStats
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.engine.engine import Engine
from oxillama.errors import ConfigError
from oxillama.lora import Lora
from oxillama.snapshot.format.reader import open_snapshot
from oxillama.snapshot.resume import ResumeOptions, resumed
from oxillama.snapshot.speculative import pack_speculative, restored_speculative, write_speculative
from oxillama.speculative.draft_model import DraftModel
from oxillama.text_settings import Acceptance

__all__ = ["SpeculativeEngine"]


# Those of the constructor.
KEYWORDS = (
    *("target", "draft", "num_speculative", "seed", "acceptance", "adaptive"),
    *EngineOptions.__annotations__,
)
MADE: dict[str, Callable[[], Draft]] = {"lookup": PromptLookup, "grammar": GrammarDraft}


class SpeculativeEngine:
    """A model for whose texts a draft proposes tokens. Use as a context manager, or call `close`.

    `generate`, `stream`, `chat`, `infill` and `batch` are those of `Engine`, with all their options, and give the same;
    sooner, where draft tokens are accepted. `draft=None` there is for once without. For all else there is `engine`.

    Its pickle is those of its model and its drafts. engine: the model. draft: what proposes its tokens. It closes both
    if it loaded them. accepted_tokens, rng_state: what a snapshot of the original says of its last round,
    for the next one that is written; () and None.
    """

    def __init__(
        self,
        target: ModelSource | Engine = None,
        draft: Any = None,
        num_speculative: int = 4,
        seed: int | None = None,
        *,
        acceptance: Acceptance = "match",
        adaptive: bool | None = None,
        **fields: Unpack[EngineOptions],
    ) -> None:
        """target: a loaded `Engine`, or what `load` takes, with `fields`, the options of that.

        draft: a GGUF file, a loaded `Engine` (whose weights it shares; the target itself will do), a `Draft`, "lookup",
            "grammar", or a list of these, of which the first counts that has something to propose.
        num_speculative, acceptance, adaptive: see `DraftOptions`. seed: of the calls that give none.

        Raises ConfigError, also for a draft with another vocabulary, LoadError and its children.
        """
        check_keywords("SpeculativeEngine", fields, KEYWORDS)
        if isinstance(target, Engine) and (given := given_of(fields)):
            raise ConfigError(f"{next(iter(given))} can't be given with a loaded Engine: its model is loaded already")
        self._closing = ExitStack()
        try:
            self.draft = self._draft_of(draft)  # it closes after the engine, whose requests use it until they end
            self.engine = target if isinstance(target, Engine) else Engine.load(target, **fields)
            self._owns_engine = self.engine is not target
            if self._owns_engine:
                self._closing.callback(self.engine.close)
            self._settings = {"num_speculative": num_speculative, "acceptance": acceptance, "adaptive": adaptive}
            options = DraftOptions(draft=self.draft, **self._settings)  # type: ignore[arg-type]
            self.engine.context.core.check_generates()
            self.engine.context.factory.bind(options)
            self.seed = SamplerConfig(seed=seed).seed
            self.accepted_tokens: tuple[int, ...] = ()
            self.rng_state: int | None = None
            self._past = SpecStats()
        except BaseException:
            self._closing.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {**self._settings, "seed": self.seed}
        return _reopened, (type(self), self.engine, self.draft, settings, self._owns_engine)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _draft_of(self, draft: Any) -> Draft | list[Draft]:
        if isinstance(draft, Iterable) and not isinstance(draft, Draft | str | bytes | bytearray | memoryview):
            return [self._one(f"draft[{i}]", one) for i, one in enumerate(draft)]
        return self._one("draft", draft)

    def _one(self, name: str, draft: Any) -> Draft:
        if isinstance(draft, str) and draft in NAMED:
            return MADE[draft]()
        if isinstance(draft, Draft) and not isinstance(draft, type):
            return draft
        if not isinstance(draft, str | os.PathLike | bytes | bytearray | memoryview | Engine):
            raise ConfigError(
                f"{name} must be a GGUF file, an Engine, a Draft, {' or '.join(map(repr, NAMED))}, not {draft!r}"
            )
        made = DraftModel(draft)
        self._closing.callback(made.close)
        return made

    # ---- text

    def generate(self, prompt: Any, **options: Any) -> Any:
        """Continues a prompt or a list of prompts: what `Engine.generate` gives, and raises."""
        return self.engine.generate(prompt, **self._with(options))

    def stream(self, prompt: Prompt, **options: Any) -> Chunks:
        """Continues one prompt, piece by piece, as `Engine.stream` does."""
        return self.engine.stream(prompt, **self._with(options))

    def chat(self, messages: Messages, **options: Any) -> Any:
        """Answers messages as `Engine.chat` does."""
        return self.engine.chat(messages, **self._with(options))

    def chat_tokens(self, messages: Messages, **options: Unpack[PromptOptions]) -> list[int]:
        """Token ids of the prompt that `chat` makes of messages, as `Engine.chat_tokens` gives them."""
        return self.engine.chat_tokens(messages, **options)

    def infill(self, prefix: str, suffix: str, **options: Any) -> Any:
        """The text between two others, as `Engine.infill` gives it."""
        return self.engine.infill(prefix, suffix, **self._with(options))

    def batch(self, prompts: Iterable[Any], **options: Any) -> Batch[Any]:
        """The results of any number of prompts as they come, as `Engine.batch` gives them."""
        return self.engine.batch(prompts, **self._with(options))

    def _with(self, options: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {"draft": self.draft, **self._settings}
        if options.get("draft", self.draft) is None:  # no option of drafts then, so that there are no statistics either
            own = {}
        sampler = options.get("sampler")
        given = getattr(getattr(sampler, "config", sampler), "seed", None)
        if self.seed is not None and given is None:
            own["seed"] = self.seed
        return overlaid(own, options)

    # ---- snapshots

    def snapshot(self, path: Path, *, compress: bool = False, format: int = 2) -> None:
        """Saves the engine's session, what a draft model has of it, and the settings of both, to a file.

        A text that is under way is saved by itself, in the middle of a round too: `stream(...).snapshot()`, and
        `resume`. compress: with zstd. format: 1 writes what the original reads, for one draft that is a model.

        Raises what `Engine.snapshot` raises.
        """
        write_speculative(self, path, compress=compress, format=format)

    def snapshot_bytes(self, *, compress: bool = False, format: int = 2) -> bytes:
        """Bytes that `snapshot` would write."""
        return pack_speculative(self, compress=compress, format=format)

    @classmethod
    def restore(
        cls,
        path: Path,
        model_path: ModelSource | Engine = None,
        draft: Any = None,
        *,
        adapters: Iterable[Path | Lora] = (),
        allow_download: bool = False,
        **fields: Unpack[EngineOptions],
    ) -> Self:
        """Loads both models of a snapshot, which may be one of the original, with the session and all settings.

        model_path, draft: where they are, if not where they were; a draft of one's own class must be given. adapters,
        fields: as for `Engine.restore`, of the model. allow_download: of both models.

        Raises what `Engine.restore` raises; SnapshotMismatchError for another draft than the one that was saved.
        """
        return restored_speculative(cls, Engine, path, model_path, draft, adapters, allow_download, fields)

    @classmethod
    def restore_bytes(
        cls,
        data: bytes | bytearray | memoryview,
        model_path: ModelSource | Engine = None,
        draft: Any = None,
        *,
        adapters: Iterable[Path | Lora] = (),
        allow_download: bool = False,
        **fields: Unpack[EngineOptions],
    ) -> Self:
        """`restore` of the bytes of a snapshot."""
        return restored_speculative(cls, Engine, data, model_path, draft, adapters, allow_download, fields)

    def resume(
        self, snapshot: Path | bytes | bytearray | memoryview, **options: Any
    ) -> Chunks | Session | Conversation | BeamRounds:
        """`Engine.resume`, with this draft for what is saved of a text, unless another is given."""
        check_keywords("resume", options, ResumeOptions.__annotations__)
        opened = open_snapshot(snapshot)
        try:
            if options.get("draft") is None and opened.kind in ("text", "texts"):
                options["draft"] = DraftOptions(draft=self.draft, **self._settings)  # type: ignore[arg-type]
            return resumed(self.engine.context, opened, **options)
        finally:
            opened.close()

    def go_on(self, stats: SpecStats, accepted: tuple[int, ...], rng_state: int | None, closing: ExitStack) -> None:
        """An engine that goes on from the state of another; `closing` is called when it is closed."""
        self._past, self.accepted_tokens, self.rng_state = stats, accepted, rng_state
        self._closing.push(closing)

    # ---- life

    @property
    def stats(self) -> SpecStats:
        """Counts of drafting in all requests of the engine that used this draft first, and have ended."""
        first = self.draft[0] if isinstance(self.draft, list) else self.draft
        return self._past + self.engine.context.core.drafting.totals.get(first, SpecStats())

    @property
    def options(self) -> dict[str, Any]:
        """num_speculative, acceptance and adaptive, as texts get them unless they ask for others."""
        options = DraftOptions(draft=self.draft, **self._settings)  # type: ignore[arg-type]
        return {name: getattr(options, name) for name in self._settings}

    @property
    def closed(self) -> bool:
        return self.engine.closed

    def close(self) -> None:
        """Ends what is under way in a model that it loaded itself, and frees what it loaded; no more than once."""
        self._closing.close()

    def __enter__(self) -> Self:
        self.engine.context.core.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SpeculativeEngine of {self.engine!r} with {self.draft!r}>"


def _reopened(
    kind: type[SpeculativeEngine], engine: Engine, draft: Any, settings: dict[str, Any], owns_engine: bool
) -> SpeculativeEngine:
    """Reopens a pickled engine: it closes the model if that one did, and draft models that were opened for it."""
    found = kind(engine, draft, **settings)
    for one in draft if isinstance(draft, list) else [draft]:
        if owns_engine and isinstance(one, DraftModel):
            found._closing.callback(one.close)
    if owns_engine:
        found._owns_engine = True
        found._closing.callback(engine.close)  # first
    return found
