"""Draft scheduler: which drafts an engine knows, how many draft tokens each request gets in a step, and which hold."""

import logging
import time
import weakref
from collections import deque
from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.core.draft_options import DraftOptions, DraftRound, Speculation
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.results import FinishReason
from oxillama.drafts.cost_model import (
    KEPT_STEPS,
    KEPT_TIMES,
    LEAST_CHANCE,
    TRY_CHANCE,
    AcceptanceEstimate,
    DraftRequest,
    StepTimeModel,
    allocate_drafts,
    median,
)
from oxillama.drafts.draft import Distribution, Draft, DraftTask, Proposal, SpecStats, Target
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import GenerateError, GrammarError
from oxillama.sampling.rejection import check_probs
from oxillama.scheduling.scheduler import MAX_DRAFT_TOKENS

__all__ = [
    "BoundDrafts",
    "Drafting",
    "verify",
]

Wanted = tuple[GenerationRequest, Speculation, int]  # how many tokens
Failure = tuple[list[GenerationRequest], BaseException]

# The first time of a draft is that of a warm-up, or slow by chance, and by it alone no second one would be asked for.
LEAST_TIMES = 2

log = logging.getLogger("oxillama")


class BoundDrafts:
    """The drafts that requests of one engine have used."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._named: dict[str, Draft] = {}
        self._bound: weakref.WeakSet[Draft] = weakref.WeakSet()

    def speculation(self, options: DraftOptions) -> Speculation:
        """Drafting of one request with a draft. Raises what binding a draft raises."""
        return Speculation(tuple(map(self._find, options.draft)), options)

    def _find(self, draft: str | Draft) -> Draft:
        found = self._made(draft) if isinstance(draft, str) else draft
        if found not in self._bound:
            found.bind(self._target)
            self._bound.add(found)
        return found

    def _made(self, name: str) -> Draft:
        found = self._named.get(name)
        return found or self._named.setdefault(name, PromptLookup() if name == "lookup" else GrammarDraft())


class Drafting:
    """The requests of one engine that have drafts. All methods run in a turn of its loop.

    costs: of the engine's steps, measured while there are such requests. totals: of those that have ended, by the
    first of their drafts. seconds: that drafts took in the last `ask`.
    """

    def __init__(self) -> None:
        self.costs = StepTimeModel()
        self.requests: dict[GenerationRequest, Speculation] = {}
        self.totals: weakref.WeakKeyDictionary[Draft, SpecStats] = weakref.WeakKeyDictionary()
        # Of a round, in units of the steps' level.
        self._times: weakref.WeakKeyDictionary[Draft, deque[float]] = weakref.WeakKeyDictionary()
        self._timed: weakref.WeakKeyDictionary[Draft, int] = weakref.WeakKeyDictionary()  # at which number of steps
        self.seconds = 0.0
        self._n_asked = 0

    def ask(self, rows: int) -> list[Failure]:
        """Gives decoding requests draft tokens, as many as pay in a step of `rows` rows besides.

        Returns requests whose draft failed, with its error.
        """
        self._n_asked += 1
        self.seconds = 0.0
        failed: list[Failure] = []
        for request, speculation in self.requests.items():
            _put_ahead(request, speculation)  # of a round that is under way
        asking = [asked for asked in self.requests.items() if _may_draft(*asked)]
        by = 0
        rows += sum(request.sequence.queued for request, _ in asking)  # they begin in this step, if there is room
        if any(s.adaptive for _, s in asking) and self.costs.wants_plain(rows):
            asking = [(r, s) for r, s in asking if not s.adaptive]
        while asking:
            for draft, wanted in self._wanted(asking, by, rows).items():
                try:
                    rows += self._propose(draft, by, wanted, failed)
                except BaseException as error:
                    failed.append(([request for request, _, _ in wanted], error))
            by += 1
            asking = [(r, s) for r, s in asking if _lacks_draft_tokens(r, s) and by < len(s.drafts)]
        return failed

    def _wanted(
        self, asking: list[tuple[GenerationRequest, Speculation]], by: int, rows: int
    ) -> dict[Draft, list[Wanted]]:
        """Numbers of tokens that each request asks its draft of this number for; requests that ask for none are left
        out."""
        asking = [(r, s) for r, s in asking if not (s.adaptive and s.trusts[by].resting > len(r.sequence.tokens))]
        if not asking:
            return {}
        bids = [self._bid(request, speculation, by) for request, speculation in asking]
        allocate_drafts(
            self.costs, rows, [bid for (_, s), bid in zip(asking, bids, strict=True) if s.adaptive], MAX_DRAFT_TOKENS
        )
        wanted: dict[Draft, list[Wanted]] = {}
        for (request, speculation), bid in zip(asking, bids, strict=True):
            if speculation.adaptive:
                self._judge(request, speculation.trusts[by], bid, rows)
            n = bid.granted if speculation.adaptive else bid.n
            if n:
                wanted.setdefault(speculation.drafts[by], []).append((request, speculation, n))
        return wanted

    def _bid(self, request: GenerationRequest, speculation: Speculation, by: int) -> DraftRequest:
        sequence, trust = request.sequence, speculation.trusts[by]
        if speculation.rejects:  # also at the end, where not all can count: what is drafted may depend on how many are
            return DraftRequest(trust.chance, speculation.k)
        n = min(speculation.k, sequence.n_reserve - len(sequence.tokens))
        if not speculation.adaptive:
            return DraftRequest(trust.chance, n)
        draft = speculation.drafts[by]
        seconds = self._seconds(draft)
        if not trust.resting:
            return DraftRequest(trust.chance, n if trust.chance >= LEAST_CHANCE else 0, seconds, draft)
        return DraftRequest(TRY_CHANCE, min(n, 1), seconds, draft)

    def _judge(self, request: GenerationRequest, trust: AcceptanceEstimate, bid: DraftRequest, rows: int) -> None:
        """Whether a draft is of use for a request, were that alone; a full batch is no fault of the draft's.

        As long as it may be, for what little was seen of it, it gets another try.
        """
        n_tokens = len(request.sequence.tokens)
        if trust.resting:
            if not bid.granted:
                trust.postpone(n_tokens)
        elif bid.granted:
            trust.resume()
        elif not self._pays(1, trust.upper_bound, bid):
            trust.pause(n_tokens)
        elif not self._pays(1, trust.chance, bid) and self._pays(rows, trust.upper_bound, bid):
            bid.granted = 1

    def _pays(self, rows: int, chance: float, bid: DraftRequest) -> bool:
        """Whether draft tokens of this chance pay for one text in a step of so many rows besides."""
        one = DraftRequest(chance, bid.n, bid.seconds)
        allocate_drafts(self.costs, rows, [one], MAX_DRAFT_TOKENS)
        return one.granted > 0

    def _seconds(self, draft: Draft) -> float:
        """Seconds of a round of a draft: one more token for each request that uses it. 0.0 until it is measured."""
        if self._n_asked > self._timed.get(draft, 0) + KEPT_STEPS:
            self._times.pop(draft, None)  # what was slow by chance, and is not asked any more, would stay so for ever
        times = self._times.get(draft)
        if times is None or len(times) < LEAST_TIMES:
            return 0.0
        return median(times) * self.costs.level

    def _propose(self, draft: Draft, by: int, wanted: list[Wanted], failed: list[Failure]) -> int:
        """Asks one draft for all requests that use it; how many tokens it proposed.

        Requests of which the draft proposes another round than the one that they are in go to `failed`.
        """
        tasks = [_task(*one) for one in wanted]
        marks = [request.sampler.memory.n_accepted for request, _, _ in wanted]
        new = [speculation for _, speculation, _ in wanted if draft not in speculation.asked]
        for speculation in new:
            speculation.asked.add(draft)
        lengths = [len(task.tokens) for task in tasks]
        began = time.perf_counter()
        proposals = draft.propose(tasks)
        seconds = time.perf_counter() - began
        self.seconds += seconds
        _check_unchanged(draft, tasks, lengths)
        _check_form(draft, proposals, [n for _, _, n in wanted])
        total = 0
        for (request, speculation, _), mark, proposal in zip(wanted, marks, proposals, strict=True):
            request.sampler.rewind(request.sampler.memory.n_accepted - mark)
            drafted = _valid_tokens(request, speculation, proposal)
            speculation.proposed(by, seconds)
            total += len(drafted)
            if not speculation.rejects:
                request.sequence.draft_tokens = drafted
            elif (error := _begin_round(request, speculation, drafted, proposal.probs, by)) is not None:
                failed.append(([request], error))
        if not new and not any(speculation.trusts[by].resting for _, speculation, _ in wanted):
            self._time(draft, seconds, [len(proposal.tokens) for proposal in proposals])
        return total

    def _time(self, draft: Draft, seconds: float, counts: list[int]) -> None:
        """Takes note of what a draft took that had nothing to read but what came since the last step."""
        if all(counts) or not any(counts):  # else it is still at the prompts of some
            cost = seconds / max(1, *counts) / (self.costs.level or 1.0)
            self._times.setdefault(draft, deque(maxlen=KEPT_TIMES)).append(cost)
            self._timed[draft] = self._n_asked

    def forget(self, request: GenerationRequest) -> None:
        """A request ended."""
        speculation = self.requests.pop(request, None)
        if speculation is None:
            return
        first = speculation.drafts[0]
        self.totals[first] = self.totals.get(first, SpecStats()) + speculation.stats()
        for draft in speculation.release():
            try:
                draft.forget(request.sequence.id)
            except BaseException:
                log.exception("the draft %s failed to forget a text that ended", type(draft).__name__)


def _may_draft(request: GenerationRequest, speculation: Speculation) -> bool:
    """Whether a draft is to be asked for a request now.

    With acceptance="rejection": whenever its next token is none of a round yet, whatever is computed of it. Whichever
    step has a row for that token, the round is there, so that the text depends on nothing else.

    Else if it lacks one token that was drawn, and has more than one to draw; also one that waits with all else
    computed, as after a fork or from a snapshot.
    """
    s = request.sequence
    if not s.is_scheduled or not speculation.k or len(s.tokens) <= s.n_prompt:
        return False
    if speculation.rejects:
        return speculation.round is None
    return s.is_decoding and not s.draft_tokens and not s.n_recompute and len(s.tokens) < s.n_reserve


def _lacks_draft_tokens(request: GenerationRequest, speculation: Speculation) -> bool:
    """Whether the drafts that were asked for a request had nothing to propose."""
    return not (request.sequence.draft_tokens if speculation.round is None else speculation.round.tokens)


def _put_ahead(request: GenerationRequest, speculation: Speculation) -> None:
    """Has what is left of a round computed in the next step, if the request decodes; the scheduler cuts it as it has
    room. Without any, the row of the last token still decides on the first of them."""
    sequence = request.sequence
    if (
        speculation.round is not None
        and sequence.is_decoding
        and not sequence.n_recompute
        and not sequence.draft_tokens
    ):
        sequence.draft_tokens = speculation.round.left


def _begin_round(
    request: GenerationRequest, speculation: Speculation, tokens: list[int], probs: list[Distribution] | None, by: int
) -> GenerateError | None:
    """Takes a proposal as the request's round; the error if it is in the middle of another one."""
    n, known = speculation.n_begun, request.sequence.tokens
    if n and not tokens and by + 1 < len(speculation.drafts):
        return None  # it is the next draft's
    speculation.n_begun = 0
    if tokens[:n] != known[len(known) - n :]:
        name = type(speculation.drafts[by]).__name__
        return GenerateError(
            f"the draft {name} proposes other tokens than when the request was saved, in the middle of a round with "
            "acceptance='rejection': its text can't go on as it began; give a draft that always proposes the same"
        )
    speculation.round = DraftRound(tokens, probs, n)
    _put_ahead(request, speculation)
    return None


def _task(request: GenerationRequest, speculation: Speculation, n: int) -> DraftTask:
    sequence, tokens, sampler = request.sequence, request.sequence.tokens, request.sampler
    if speculation.n_begun:  # as it was at the beginning of the round
        tokens, sampler = tokens[: -speculation.n_begun], sampler.copy()
        sampler.rewind(speculation.n_begun)
    return DraftTask(sequence.id, tokens, n, sampler, speculation.rejects, sequence.cache_key)


def _check_unchanged(draft: Draft, tasks: list[DraftTask], lengths: list[int]) -> None:
    """Raises GenerateError if a draft wrote draft tokens into the texts: they would never be verified."""
    for task, n in zip(tasks, lengths, strict=True):
        if len(task.tokens) != n:
            del task.tokens[n:]
            raise GenerateError(f"the draft {type(draft).__name__} changed a task's tokens: it may only read them")


def _check_form(draft: Draft, proposals: Any, wanted: list[int]) -> None:
    """Raises GenerateError unless there is one proposal for each task, and it is one, of at most so many tokens."""
    name = type(draft).__name__
    if not isinstance(proposals, list) or len(proposals) != len(wanted):
        raise GenerateError(f"the draft {name} must propose a list of {len(wanted)}, one for each task")
    for n, proposal in zip(wanted, proposals, strict=True):
        if not isinstance(proposal, Proposal) or not isinstance(proposal.tokens, list):
            raise GenerateError(f"the draft {name} must propose a Proposal with a list of tokens, not {proposal!r}")
        if len(proposal.tokens) > n:
            raise GenerateError(f"the draft {name} proposed {len(proposal.tokens)} tokens where {n} were wanted")
        if proposal.probs is not None and len(proposal.probs) != len(proposal.tokens):
            raise GenerateError(f"the draft {name} proposed {len(proposal.tokens)} tokens and other numbers of probs")


def _valid_tokens(request: GenerationRequest, speculation: Speculation, proposal: Proposal) -> list[int]:
    """Draft tokens to be verified. Raises GenerateError for what is no token, and for probabilities that are none."""
    tokens = [token if type(token) is int else _as_int(token) for token in proposal.tokens]
    for token in tokens:
        if type(token) is not int or not 0 <= token < request.n_vocab:
            raise GenerateError(f"a draft proposed the token {token!r}: ids are integers below {request.n_vocab}")
    if not speculation.rejects:
        return _possible(request, tokens)
    # All of them: to leave a token out for what it is would make it less likely.
    if proposal.probs is not None:
        check_probs(tokens, proposal.probs)
    return tokens


def _as_int(token: Any) -> Any:
    """An integer of NumPy's as Python's; what is no integer as it is."""
    try:
        return token if isinstance(token, bool) else index(token)
    except TypeError:
        return token


def _possible(request: GenerationRequest, tokens: Iterable[int]) -> list[int]:
    """The draft tokens up to the first that the text can't go on with: an end, or one against its grammar."""
    grammar, found = request.sampler.memory.grammar, []
    try:
        for token in tokens:
            if token in request.end_ids:
                break
            if grammar is not None:
                grammar.advance(token)
            found.append(token)
    except GrammarError:
        pass
    finally:
        if grammar is not None:
            grammar.rollback(len(found))
    return found


def verify(rows: NDArray[np.float32], ahead: list[int], request: GenerationRequest) -> FinishReason | None:
    """Draws what follows a text by the rows of its last token and of each draft token after it, float32 [1 + k, vocab].

    A row is of use only if all draft tokens before it are what was drawn. Tokens go to the end of
    `request.sequence.tokens`: as long as they are those of the draft, and one more. Returns why the request is
    finished, or None. Raises what drawing raises; the tokens before it are there then.
    """
    tokens = request.sequence.tokens
    for row, drafted in zip(rows, [*ahead, -1], strict=True):
        reason = request.draw(row)
        if reason is not None or tokens[-1] != drafted:
            return reason
    return None
