"""State of a beam search as JSON, and back.

``search``: limit (tokens of a result at most), beam_width, length_penalty, early_stopping, ignore_eos, priority,
stop_token_ids (left out if there are none), seconds_left, deadline_from ("start": they count from the first step);
``shaping``, settings that say which tokens may come; ``over``; ``found``, [log-probability, tokens, reason] of each
result; ``beams``, by rank, [log-probability, whether it is expanded]; ``candidates``, what may follow in this round,
[log-probability, rank of the beam, token]; ``dead_end``, [whether a grammar left it, why], or null.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

from oxillama._util.checks import MAX_CONTEXT
from oxillama._util.json_fields import Fields
from oxillama.config import SamplerConfig
from oxillama.core.beam_rounds import PLAIN, BeamRounds
from oxillama.core.beam_search import (
    MAX_BEAMS,
    BeamOptions,
    BeamSearch,
    BeamSearchConfig,
    Candidate,
    Fill,
    go_on,
    progress,
)
from oxillama.core.results import FinishReason
from oxillama.errors import (
    ConfigError,
    ContextOverflowError,
    GenerateError,
    GrammarError,
    SnapshotDamagedError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.sampler_config import SHAPING
from oxillama.sampling import SamplerChain
from oxillama.snapshot.bundle import save_bundle
from oxillama.snapshot.capture import EMPTY_BASE
from oxillama.snapshot.format.reader import Contents
from oxillama.snapshot.request_state import (
    deadline_state,
    read_config,
    read_ends,
    read_serving,
    read_stop_ids,
    sampler_config_state,
)
from oxillama.snapshot.resume_request import adapter_set, prompt_of, tokens_of
from oxillama.snapshot.sequences import put

if TYPE_CHECKING:
    from oxillama.core.context import EngineContext
    from oxillama.core.results import CancelToken
    from oxillama.lora import LoraSet
    from oxillama.snapshot.capture import SnapshotWriter

__all__ = [
    "BeamResumer",
    "save_search",
]

KIND = "beams"
REASONS = get_args(FinishReason)
MAX_MESSAGE = 1000


# ---- capture


def save_search(writer: SnapshotWriter, search: BeamSearch, path: Any, *, compress: bool) -> bytes | None:
    """`BeamRounds.snapshot`."""

    def take() -> tuple[dict[str, Any], Iterator[Contents]]:
        state = progress(search) | settings_of(search.options)
        sequences = [beam.sequence for beam in search._live]
        parts = (writer.saved("beam", s, s.n_computed, EMPTY_BASE, {}, {}) for s in sequences)
        return {"kind": KIND, "search": state | deadline_state(search._live[0])}, parts

    return save_bundle(writer, take, path, compress=compress)


def settings_of(options: BeamOptions) -> dict[str, Any]:
    config, shaping = options.config, sampler_config_state(options.chain.config)
    shaping["schema_mode"] = options.chain.config.schema_mode
    return {
        "beam_width": config.beam_width,
        "length_penalty": config.length_penalty,
        "early_stopping": config.early_stopping,
        "ignore_eos": options.ignore_eos,
        "priority": options.serving.priority,
        "shaping": {name: shaping[name] for name in SHAPING if name in shaping},
        **({"stop_token_ids": list(options.stop_token_ids)} if options.stop_token_ids else {}),
    }


# ---- resumption


class BeamResumer:
    """Resumption of a saved beam search in an engine."""

    def __init__(self, engine: EngineContext, found: list[Contents], state: Fields | None, label: str) -> None:
        if state is None:
            raise SnapshotFormatError(f"{label}: it is of one beam of a search, which resumes only with all of them")
        self.engine, self.found, self.label = engine, found, label
        self.given = state.sub("search")
        self.states = [Fields(saved.state, label) for saved in found]
        self.tokens = [tokens_of(saved, engine.spec.n_vocab, label) for saved in found]
        self.prompts = [prompt_of(engine, *one, label) for one in zip(self.states, self.tokens, strict=True)]
        self.n_prompt = self.prompts[0].n_positions
        self.limit = self.given.integer("limit", 1, MAX_CONTEXT)
        self.width = self.given.integer("beam_width", max(1, len(found)), MAX_BEAMS)

    def resumed(self, cancel_token: CancelToken | None) -> BeamRounds:
        """The search, which starts when its first round is requested. Raises SnapshotError's children,
        KvCacheFullError."""
        engine, label = self.engine, self.label
        self._check_beams()
        found, candidates, beams, dead_end = self._found(), self._candidates(), self._beams(), self._dead_end()
        over = self.given.flag("over")
        if not (over or candidates or dead_end) and any(expanded for *_, expanded in beams):
            raise SnapshotDamagedError(f"{label}: candidates are missing")
        self._check_ends(beams)
        computed = [self._n_computed(i, expanded) for i, (*_, expanded) in enumerate(beams)]
        try:
            prompt, options = self.prompts[0], self._options(cancel_token)
            search = BeamSearch(engine.core, engine.factory, prompt.ids, options, loras=self._adapters())
            fill: list[Fill] = [partial(self._fill, i, n) for i, n in enumerate(computed)]
            go_on(search, beams, found, candidates, dead_end, fill)
        except (ConfigError, GrammarError, ContextOverflowError) as error:
            raise SnapshotDamagedError(f"{label}: {error}") from None
        if over:
            search.outbox.n_open = 0
        return BeamRounds(engine.core, search, cancel_token, engine.snapshots)

    def _check_beams(self) -> None:
        """Raises SnapshotDamagedError unless all beams have one length and one prompt."""
        n = len(self.tokens[0])
        for prompt, tokens in zip(self.prompts, self.tokens, strict=True):
            if prompt != self.prompts[0]:
                raise SnapshotDamagedError(f"{self.label}: its beams are of several prompts")
            if not self.n_prompt <= len(tokens) == n < self.n_prompt + self.limit:
                raise SnapshotDamagedError(f"{self.label}: its beams have several lengths, or too many tokens")
        if self.n_prompt + self.limit > self.engine.context_size:
            raise SnapshotMismatchError(
                f"{self.label}: it continues to {self.n_prompt + self.limit} tokens, more than the context_size of "
                f"this engine, {self.engine.context_size}"
            )

    def _check_ends(self, beams: list[tuple[list[int], float, bool]]) -> None:
        """Raises SnapshotDamagedError unless beams are sorted, and none continues after the end of its text."""
        logprobs = [logprob for _, logprob, _ in beams]
        if logprobs != sorted(logprobs, reverse=True):
            raise self.given.wrong("beams", "the likeliest first")
        ends = read_ends(self.given, self.engine.tokenizer.eog_ids)
        if any(token in ends for tokens, *_ in beams for token in tokens):
            raise SnapshotDamagedError(f"{self.label}: a beam continues after a token that ends a text")

    def _n_computed(self, i: int, expanded: bool) -> int:
        n = len(self.tokens[i])
        return self.states[i].sub("sequence").integer("n_computed", 0, n if expanded else n - 1)

    def _options(self, cancel_token: CancelToken | None) -> BeamOptions:
        given = self.given
        config = BeamSearchConfig(
            self.width, self.limit, given.number("length_penalty"), given.flag("early_stopping")
        )  # fmt: skip
        chain, serving = SamplerChain.from_config(self._shaping()), read_serving(given)
        stops = read_stop_ids(given)
        return BeamOptions(config, chain, serving, given.flag("ignore_eos"), cancel_token, stops)

    def _shaping(self) -> SamplerConfig:
        given = self.given.sub("shaping")
        if not set(given) <= set(SHAPING):
            raise self.given.wrong("shaping", f"settings among {', '.join(SHAPING)}")
        return read_config(Fields(sampler_config_state(PLAIN) | dict(given), self.label), self.label)

    def _adapters(self) -> LoraSet:
        """The adapters of all beams. Raises SnapshotMismatchError for an adapter that is not loaded."""
        weights = [state.sub("sequence").scaled("weights") for state in self.states]
        if any(of != weights[0] for of in weights):
            raise SnapshotDamagedError(f"{self.label}: its beams are computed with several sets of adapters")
        files = self.states[0].sub("adapters").sub("files")
        return adapter_set(self.engine.loras, weights[0], files, self.label)

    def _items(self, name: str, n: int, most: int) -> list[list[Any]]:
        """Reads at most `most` lists of n values, each of which begins with a log-probability."""
        items = self.given.items_of(name)
        if len(items) > most or not all(isinstance(item, list) and len(item) == n for item in items):
            raise self.given.wrong(name, f"at most {most} lists of {n}")
        for item in items:
            Fields({name: item[0]}, self.label).number(name)
        return items

    def _found(self) -> list[tuple[float, list[int], FinishReason]]:
        found = self._items("found", 3, self.width)
        for _, tokens, reason in found:
            known = isinstance(tokens, list) and len(tokens) <= self.limit and all(map(self._is_token, tokens))
            if not known or reason not in REASONS:
                raise self.given.wrong("found", "results")
        return [(float(x), tokens, cast("FinishReason", reason)) for x, tokens, reason in found]

    def _candidates(self) -> list[Candidate]:
        candidates, expanded = (
            self._items("candidates", 3, 2 * self.width),
            [expanded for *_, expanded in self._beams()],
        )
        for _, number, token in candidates:
            known = type(number) is int and 0 <= number < len(expanded)
            if not known or not expanded[number] or not self._is_token(token):
                raise self.given.wrong("candidates", "tokens after beams that are expanded")
        if len({(number, token) for _, number, token in candidates}) < len(candidates):
            raise self.given.wrong("candidates", "different ones")
        return [(float(x), number, token) for x, number, token in candidates]

    def _is_token(self, token: Any) -> bool:
        return type(token) is int and 0 <= token < self.engine.spec.n_vocab

    def _beams(self) -> list[tuple[list[int], float, bool]]:
        beams = self._items("beams", 2, self.width)
        if len(beams) != len(self.tokens) or not all(isinstance(expanded, bool) for _, expanded in beams):
            raise self.given.wrong("beams", f"{len(self.tokens)} log-probabilities and whether each is expanded")
        return [(t[self.n_prompt :], float(x), expanded) for t, (x, expanded) in zip(self.tokens, beams, strict=True)]

    def _dead_end(self) -> Exception | None:
        if self.given.get("dead_end") is None:
            return None
        match self.given.items_of("dead_end"):
            case [bool(of_grammar), str(message)] if message.isprintable() and len(message) <= MAX_MESSAGE:
                return GrammarError(message) if of_grammar else GenerateError(message)
        raise self.given.wrong("dead_end", "whether a grammar ended the search, and why")

    def _fill(self, i: int, n_computed: int, sequence: Any) -> None:
        """Gives a beam what was computed; called in the turn that queues it."""
        put(self.engine.core, sequence, self.found[i].tensors, n_computed, self.label)
        self.found[i].tensors = {}  # of no more use
