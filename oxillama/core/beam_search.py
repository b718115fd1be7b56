"""Beam search over shared KV blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_type
from oxillama._util.rounded import power
from oxillama._util.settings import check_fields, setting, settings
from oxillama.config import MAX_CONTEXT
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import ServingOptions
from oxillama.core.request import Bell, Request, ResultQueue
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import BeamHypothesis, CancelToken, FinishReason
from oxillama.errors import (
    ConfigError,
    EngineClosedError,
    GenerateError,
    GrammarError,
    KvCacheFullError,
    OxiLlamaError,
)
from oxillama.kernels.logprobs import log_sum_exp
from oxillama.lora import LoraSet
from oxillama.sampler_config import checked_ids
from oxillama.sampling import SamplerChain
from oxillama.sampling.stages import draw
from oxillama.scheduling.block_manager import n_alive
from oxillama.scheduling.prefix_cache import WINDOWED
from oxillama.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from oxillama.core.results import FinishReason
    from oxillama.scheduling.sequence import Sequence

__all__ = [
    "Beam",
    "BeamOptions",
    "BeamOutbox",
    "BeamSearch",
    "BeamSearchConfig",
    "Candidate",
    "Fill",
    "FoundBeams",
    "choose",
    "go_on",
    "progress",
]

MAX_BEAMS = 1024
# Up to here, no length that fits a context gives a power beyond the range of floats.
MAX_PENALTY = 32.0

Candidate = tuple[float, int, int]  # log-probability of all its tokens, number of the beam that it continues, token


@settings()
@dataclass(frozen=True, slots=True)
class BeamSearchConfig:
    """Settings of beam search. Every field is a keyword of `beam_search`.

    {fields}

    Raises ConfigError, which names the field, its value and its range.
    """

    beam_width: int = setting(4, "beams that are followed, and results.", least=1, most=MAX_BEAMS)
    max_new_tokens: int = setting(
        256, "tokens of a result at most; the context's end may come before.", least=1, most=MAX_CONTEXT
    )
    length_penalty: float = setting(
        1.0,
        "a result's score is the sum of its tokens' log-probabilities / length ** length_penalty. The length "
        "counts its tokens and that of the end, as in Hugging Face's transformers (`BeamHypotheses.add`). Above 0 it "
        "favours longer results, below 0 shorter ones.",
        least=-MAX_PENALTY,
        most=MAX_PENALTY,
    )
    early_stopping: bool = setting(
        True, "stop as soon as there are beam_width finished results; else when no beam can get better than those."
    )

    def __post_init__(self) -> None:
        check_fields(self)


def choose(
    candidates: SequenceOf[Candidate], width: int, end_ids: Collection[int]
) -> tuple[list[Candidate], list[Candidate]]:
    """(those that end, those that go on, at most `width`), each with the best first.

    Of equals the one goes first whose beam does, then the lower token. An end counts only among the first `width` of
    all, or it would crowd out what is better.
    """
    ended: list[Candidate] = []
    chosen: list[Candidate] = []
    for rank, candidate in enumerate(sorted(candidates, key=lambda c: (-c[0], c[1], c[2]))):
        if candidate[2] not in end_ids:
            chosen.append(candidate)
            if len(chosen) == width:
                break
        elif rank < width:
            ended.append(candidate)
    return ended, chosen


class FoundBeams:
    """Results by falling score: (score, log-probability, tokens, reason), as many as the beams are."""

    def __init__(self, config: BeamSearchConfig, limit: int) -> None:
        """`limit`: tokens of a result at most."""
        self._config = config
        self._limit = limit
        self.kept: list[tuple[float, float, list[int], FinishReason]] = []

    def score(self, logprob: float, length: int) -> float:
        """Score by which results are sorted. `length`: tokens, with that of the end."""
        return logprob / power(float(max(1, length)), self._config.length_penalty)

    def add(self, logprob: float, tokens: list[int], reason: FinishReason) -> None:
        """`tokens` are those after the prompt, without that of the end; the first of equals stays the first."""
        score = self.score(logprob, len(tokens) + (reason == "stop"))
        self.kept.append((score, logprob, tokens, reason))
        self.kept.sort(key=lambda found: -found[0])
        del self.kept[self._config.beam_width :]

    def suffice(self, best: float, n_tokens: int) -> bool:
        """Whether the search can stop. `best`: log-probability of the best beam, which has so many tokens.

        A beam's log-probability never rises; with a penalty above 0 its score is the highest at full length.
        """
        config = self._config
        if len(self.kept) < config.beam_width:
            return False
        length = self._limit if config.length_penalty > 0 else n_tokens
        return config.early_stopping or self.kept[-1][0] >= self.score(best, length)


class Beam(Request):
    """A place for a beam: one sequence of it after another.

    number: of the beam, by rank. logprob: of its tokens after the prompt. sampler: follows the grammar. expanded:
    whether the round has its continuations.
    """

    shares = True

    def __init__(self, search: BeamSearch, number: int, **options: Any) -> None:
        super().__init__(search.sequence([]), search.outbox, loras=search.loras, **options)
        self._search = search
        self.number = number
        self.logprob = 0.0
        self.expanded = False
        self.sampler = search.sampler

    @property
    def generated(self) -> list[int]:
        """Tokens of the beam after the prompt."""
        return self.sequence.tokens[self.n_prompt :]

    def absorb(self, rows: NDArray[np.float32]) -> None:
        self._search.hear(self, rows[-1])

    def close(self, reason: FinishReason) -> FinishReason:
        self._search.leave(self, reason)
        return reason


class BeamOutbox(ResultQueue):
    """Tells its search when a beam has ended."""

    search: BeamSearch

    def end(self, request: Request, error: BaseException | None) -> None:
        super().end(request, error)
        self.search.stop(error)


@settings()
@dataclass(frozen=True)
class BeamOptions:
    """Options of a beam search, checked.

    config, options: fields of `BeamSearchConfig`, singly or together; `max_tokens` is another name of `max_new_tokens`.
        Also what says which tokens may come: `grammar`, `json_schema` (with `schema_mode`), `regex`, `choices`,
        `banned_tokens`, `allowed_token_ids`, `bad_words` and `min_tokens` leave log-probabilities as they are, and
        `logit_bias` adds to them; and `priority`, `deadline`, `deadline_from`, `cache_prompt`, `cache_salt`. Nothing is
        drawn at random: other fields of `SamplerConfig` have no place here.
    {fields}
    """

    config: BeamSearchConfig
    chain: SamplerChain  # what the grammar bans; it ends with `draw`, which isn't used
    serving: ServingOptions
    ignore_eos: bool = setting(False, "end-of-generation tokens are tokens like others.")
    cancel_token: CancelToken | None = setting(
        None,
        "lets another thread stop it; what there is by then is returned, unfinished beams included.",
        check=lambda name, given: check_type(name, given, CancelToken),
    )
    stop_token_ids: tuple[int, ...] = setting(
        (), "ids of tokens that end a text, beside those that end it for the model.", check=checked_ids
    )

    def __post_init__(self) -> None:
        """Raises ConfigError for other values."""
        check_fields(self)


class BeamSearch:
    """One search, whose beams are requests like others. But for the constructor, its methods run in the loop's turns.

    A round ends when each beam has its likeliest continuations. The best of all go on: the first one of a beam
    takes its place and its blocks, and the others are forks of it, which share them. Continuations by the token of the
    end are results, and take no place. Between two rounds, beams are out of the scheduler like sequences that ended and
    keep their blocks: they lose these rather than that nothing runs, so that no search can block another one.

    n_rounds: that have ended, and were not the last.
    """

    def __init__(
        self, core: EngineCore, factory: RequestFactory, ids: list[int], options: BeamOptions, bell: Bell | None = None,
        loras: LoraSet | None = None,
    ) -> None:  # fmt: skip
        """`loras`: in place of those that options name. Raises ConfigError, ContextOverflowError, KvCacheFullError,
        GrammarError."""
        config = options.config
        if config.beam_width > factory.n_vocab:
            raise ConfigError(f"beam_width must be at most {factory.n_vocab}, all tokens, not {config.beam_width}")
        self._core = core
        self._factory = factory
        self._width = config.beam_width
        self.options = options
        self.loras = factory.loras.select(options.serving.lora) if loras is None else loras
        self._prompt, self._serving = factory.place(ids, options.serving.of_sequence(factory.kv_type, self.loras))
        self._limit = factory.limit("prompt", len(self._prompt), config.max_new_tokens)
        self._check_fits()
        self._end_ids = factory.ends(options.ignore_eos, options.stop_token_ids)
        options.chain.config.check_ids(factory.n_vocab)
        self.sampler = factory.plain_sampler(options.chain, self._end_ids)
        self._stages = [stage for stage in self.sampler.chain.stages if stage is not draw]
        self._found = FoundBeams(config, self._limit)
        self._candidates: list[Candidate] = []
        self._dead_end: Exception | None = None
        self._over = self._stopped = False  # by the search, by others
        self.reason: FinishReason = "cancelled"  # by others
        self.n_rounds = 0
        self.outbox = BeamOutbox(config.beam_width, bell, whole=True)
        self.outbox.search = self
        first = Beam(self, 0, cancel_token=options.cancel_token, time_limit=options.serving.time_limit)
        self._places = [first]
        for i in range(1, config.beam_width):
            self._places.append(Beam(self, i, cancel_token=options.cancel_token, leader=first))
        self.beams: list[Request] = [*self._places]
        self._root: Sequence | None = first.sequence
        self._live = [first]
        self._n_awaited = 1

    def _check_fits(self) -> None:
        """All beams at full length, which have the full blocks of the prompt in common."""
        scheduler, shared = self._core.scheduler, len(self._prompt) // self._core.scheduler.block_size
        each = scheduler.blocks.n_blocks(len(self._prompt) + self._limit - 1)
        for kind, pool in scheduler.blocks.groups:
            need = min(shared, each) + self._width * max(0, each - shared)
            if kind == WINDOWED:  # of which they may come to have none in common
                need = min(need, self._width * n_alive(scheduler.pool.window, scheduler.block_size, 1))
            if need > pool.n:
                raise KvCacheFullError(
                    f"{self._width} beams of {self._limit} tokens after {len(self._prompt)} need {need} {pool.noun}s, "
                    f"and there are {pool.n} in all: lower beam_width or max_new_tokens, or raise kv_budget"
                )

    def sequence(self, generated: list[int]) -> Sequence:
        """The prompt and what follows it."""
        sequence = Sequence(self._prompt + generated, len(self._prompt) + self._limit - 1, **self._serving)
        sequence.n_prompt = len(self._prompt)
        return sequence

    def results(self) -> list[BeamHypothesis]:
        """Hypotheses, when all beams have ended. Raises the error of the first that failed."""
        if self.outbox.error is not None:
            raise self.outbox.error
        return [
            BeamHypothesis(self._factory.text_of(tokens), tokens, score, reason, logprob)
            for score, logprob, tokens, reason in self._found.kept
        ]

    def followed(self) -> list[BeamHypothesis]:
        """The beams that go on, the best first."""
        found = [(beam.logprob, beam.generated) for beam in self._live]
        return [
            BeamHypothesis(
                self._factory.text_of(tokens), tokens, self._found.score(logprob, len(tokens)), None, logprob
            )
            for logprob, tokens in found
        ]

    # ---- a round

    def hear(self, beam: Beam, row: NDArray[np.float32]) -> None:
        """A beam's row of logits: it has its continuations, and waits for the others."""
        beam.followers = []
        self._candidates += [(beam.logprob + x, beam.number, token) for x, token in self._continuations(beam, row)]
        self._core.scheduler.pause(beam.sequence)
        beam.sequence.handle, beam.expanded = None, True
        self._n_awaited -= 1
        if not self._n_awaited:
            self._core.loop.post(lambda: self._turn(self._choose))

    def _continuations(self, beam: Beam, row: NDArray[np.float32]) -> list[tuple[float, int]]:
        """(log-probability, token) of as many as could be chosen, whatever the other beams have."""
        total = log_sum_exp(row)
        if math.isnan(total):
            raise GenerateError("a logit of the model is NaN or infinite: the weights or the input are damaged")
        scratch, chain = self.sampler.scratch, beam.sampler.chain
        scratch.load(row)
        try:
            for stage in self._stages:
                stage(scratch, chain.config, beam.sampler.memory)
        except (GenerateError, GrammarError) as error:  # nothing is allowed here
            self._dead_end = error
            return []
        scratch.top_k(self._width * (1 + max(1, len(self._end_ids))))
        return [(logit - total, token) for token, logit in scratch.items() if logit > -math.inf]

    def take_up(self) -> None:
        """Goes on in the middle of a round, as another search was; called in a turn of the loop."""
        self._turn(self._rejoin)

    def _turn(self, action: Callable[[], None]) -> None:
        if self._stopped:
            return
        try:
            if self._core.closed:
                raise EngineClosedError("the engine was closed during the request")
            action()
        except OxiLlamaError as error:
            self._finish(error)

    def _rejoin(self) -> None:
        for beam in self._live:
            if not beam.expanded:
                self._queue(beam)
        if not self._n_awaited:
            self._choose()

    def _choose(self) -> None:
        ended, chosen = choose(self._candidates, self._width, self._end_ids)
        self._candidates = []
        generated = [beam.generated for beam in self._live]
        for logprob, number, _ in ended:
            self._found.add(logprob, generated[number], "stop")
        n_tokens = len(generated[0]) + 1
        if chosen and not self._found.suffice(chosen[0][0], n_tokens):
            if n_tokens < self._limit:
                self._go_on(chosen)
                return
            for logprob, number, token in chosen:
                self._found.add(logprob, [*generated[number], token], "length")
        self._finish(None if self._found.kept else self._dead_end)

    def _go_on(self, chosen: list[Candidate]) -> None:
        """Puts the chosen continuations in the places of beams, and queues them for the next round."""
        scheduler, parents = self._core.scheduler, self._live
        continued = {parents[number] for _, number, _ in chosen}
        free = [beam for beam in self._places if beam not in continued]
        for beam in free:
            scheduler.blocks.rewind(beam.sequence, 0)
        live: list[Beam] = []
        for logprob, number, token in reversed(chosen):  # so that forks are made before the beam itself goes on
            parent = parents[number]
            last = not any(n == number for _, n, _ in chosen[: len(chosen) - len(live) - 1])
            beam = parent if last else free.pop()
            if beam is not parent:
                beam.sequence = self.sequence([*parent.generated, token])
                beam.sequence.deadline = parent.sequence.deadline  # which may count from the search's first step
                scheduler.blocks.fork(parent.sequence, beam.sequence)
                beam.sampler = parent.sampler.copy()
            else:
                beam.sequence.tokens.append(token)
            beam.sampler.accept(token)
            beam.logprob = logprob
            live.append(beam)
        self._live = live[::-1]
        for number, beam in enumerate(self._live):
            beam.number = number
            self._count(beam)
            self._queue(beam)
        self._n_awaited = len(live)
        self.n_rounds += 1

    def _count(self, beam: Beam) -> None:
        clock = beam.clock
        if not clock.first_at:
            clock.first_at = time.perf_counter()
            if not clock.started_at:
                clock.started_at = self.beams[0].clock.started_at
                self._core.meter.started(beam)
            self._core.meter.forked(beam)

    def _queue(self, beam: Beam) -> None:
        sequence = beam.sequence
        sequence.handle, beam.expanded = beam, False
        self._core.scheduler.add_request(sequence, accepted=True, beside=self._root)
        self._root = self._root or sequence
        sequence.preempted = True  # what it finds in the prefix cache was counted with its first token

    # ---- the end

    def _finish(self, error: Exception | None) -> None:
        self._over = True
        reason: FinishReason = "cancelled" if error else self._found.kept[0][3]
        self._core._end_all(self.beams, reason, error)

    def leave(self, beam: Beam, reason: FinishReason) -> None:
        """A beam ends: by the search, by its cancel token or by its deadline."""
        if not self._stopped:
            self.reason = reason
        if not self._over and beam.generated and beam in self._live:
            self._found.add(beam.logprob, beam.generated, self.reason)
        self._core.scheduler.blocks.rewind(beam.sequence, 0)

    def stop(self, error: BaseException | None) -> None:
        """A beam has ended, and the others end with it."""
        if not self._over and not self._stopped:
            self._stopped = True
            self._core.loop.post(lambda: self._core._end_all(self.beams, self.reason, error))


Fill = Callable[["Sequence"], None]


def progress(search: BeamSearch) -> dict[str, Any]:
    """All but the tokens of beams, in a turn of the loop. Raises the error of a search that failed."""
    if search._stopped:  # what is to end in the next turn ends in this one
        search._core._end_all(search.beams, search.reason)
    if search.outbox.error is not None:
        raise search.outbox.error
    ended, chosen = choose(search._candidates, search._width, search._end_ids)
    error = search._dead_end
    return {
        "limit": search._limit,
        "over": not search.outbox.n_open,
        "found": [[logprob, tokens, reason] for _, logprob, tokens, reason in search._found.kept],
        # Those that can be chosen, whatever the beams that are not expanded yet will give.
        "candidates": [[*candidate] for candidate in ended + chosen],
        "beams": [[beam.logprob, beam.expanded] for beam in search._live],
        "dead_end": None if error is None else [isinstance(error, GrammarError), str(error)],
    }


def go_on(
    search: BeamSearch,
    beams: list[tuple[list[int], float, bool]],
    found: Iterable[tuple[float, list[int], FinishReason]],
    candidates: list[Candidate],
    dead_end: Exception | None,
    fill: list[Fill],
) -> None:
    """Brings a search that has not begun to where another one was.

    beams: (tokens after the prompt, log-probability, whether it is expanded), by rank. fill: gives the
    sequence of each, in a turn of the loop, what is computed of it.
    Raises ConfigError and GrammarError for tokens that can't be.
    """
    for result in found:
        search._found.add(*result)
    search._candidates, search._dead_end = candidates, dead_end
    search._live, search._root = search._places[: len(beams)], None
    search._n_awaited = sum(not expanded for *_, expanded in beams)
    for place in search._places:
        place.follows, place.followers = True, []  # none is queued by itself
    for number, (tokens, logprob, expanded) in enumerate(beams):
        beam = search._live[number]
        beam.sequence, beam.sampler = search.sequence(tokens), search.sampler.copy()
        for token in tokens:
            beam.sampler.accept(token)
        beam.number, beam.logprob, beam.expanded = number, logprob, expanded
        beam.begin = partial(_begin, search, beam, fill[number])


def _begin(search: BeamSearch, beam: Beam, fill: Fill, sequence: Sequence) -> None:
    """Begins a beam of a search that goes on; called in the turn that queues it."""
    beam.begin = None  # which keeps what was saved
    fill(sequence)
    if beam.generated:
        beam.clock.resume(len(sequence.tokens))
    if beam.expanded:
        beam.clock.started_at = time.perf_counter()
        search._core.meter.started(beam)
    if beam is search._live[0]:
        search._core.loop.post(search.take_up)
