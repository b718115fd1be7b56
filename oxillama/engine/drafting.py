"""Asks drafts for guesses, for all requests of an engine that have one."""

import logging
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from oxillama.engine.scheduler import MAX_GUESSES
from oxillama.engine.speculation import DraftOptions, Speculation
from oxillama.engine.stream import TextRequest
from oxillama.errors import GenerateError, GrammarError
from oxillama.speculative.costs import (
    KEPT_STEPS,
    KEPT_TIMES,
    LEAST_CHANCE,
    TRY_CHANCE,
    Bid,
    StepCosts,
    Trust,
    best_bids,
)
from oxillama.speculative.draft import Draft, DraftTask, Proposal, Target
from oxillama.speculative.forced import GrammarDraft
from oxillama.speculative.lookup import PromptLookup
from oxillama.speculative.rejection import check_probs
from oxillama.speculative.stats import SpecStats

__all__ = ["BoundDrafts", "Drafting"]

Wanted = tuple[TextRequest, Speculation, int]  # how many tokens

log = logging.getLogger("oxillama")


class BoundDrafts:
    """The drafts that requests of one engine have used."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._named: dict[str, Draft] = {}
        self._bound: weakref.WeakSet[Draft] = weakref.WeakSet()

    def speculation(self, options: DraftOptions) -> Speculation | None:
        """That of one request; None without a draft. Raises what binding a draft raises."""
        if not options.draft:
            return None
        return Speculation(tuple(map(self._find, options.draft)), options)

    def _find(self, draft: str | Draft) -> Draft:
        found = self._made(draft) if isinstance(draft, str) else draft
        if found not in self._bound:
            found.bind(self._target)
            self._bound.add(found)
        return found

    def _made(self, name: str) -> Draft:
        if name not in self._named:
            self._named[name] = PromptLookup() if name == "lookup" else GrammarDraft()
        return self._named[name]


class Drafting:
    """The requests of one engine that have drafts. All methods run in a turn of its loop.

    costs: of the engine's steps, measured while there are such requests. totals: of those that have ended, by the
    first of their drafts.
    """

    def __init__(self) -> None:
        self.costs = StepCosts()
        self.requests: dict[TextRequest, Speculation] = {}
        self.totals: weakref.WeakKeyDictionary[Draft, SpecStats] = weakref.WeakKeyDictionary()
        self._times: weakref.WeakKeyDictionary[Draft, deque[float]] = weakref.WeakKeyDictionary()
        self._timed: weakref.WeakKeyDictionary[Draft, int] = weakref.WeakKeyDictionary()  # at which number of steps
        self._n_asked = 0

    def ask(self, rows: int) -> list[tuple[list[TextRequest], Exception]]:
        """Gives those who decode guesses, as many as pay in a step of `rows` rows besides.

        Returns requests whose draft failed, with its error.
        """
        self._n_asked += 1
        failed: list[tuple[list[TextRequest], Exception]] = []
        asking, by = [asked for asked in self.requests.items() if _may_guess(*asked)], 0
        rows += sum(request.sequence.queued for request, _ in asking)  # they begin in this step, if there is room
        while asking:
            for draft, wanted in self._wanted(asking, by, rows).items():
                try:
                    rows += self._propose(draft, by, wanted)
                except Exception as error:
                    failed.append(([request for request, _, _ in wanted], error))
            by += 1
            asking = [(r, s) for r, s in asking if not r.sequence.ahead and by < len(s.drafts)]
        return failed

    def _wanted(self, asking: list[tuple[TextRequest, Speculation]], by: int, rows: int) -> dict[Draft, list[Wanted]]:
        """How many guesses each request is to have of its draft of this number; those of none are left out."""
        bids = [self._bid(request, speculation, by) for request, speculation in asking]
        best_bids(self.costs, rows, [bid for (_, s), bid in zip(asking, bids, strict=True) if s.adaptive], MAX_GUESSES)
        wanted: dict[Draft, list[Wanted]] = {}
        for (request, speculation), bid in zip(asking, bids, strict=True):
            if speculation.adaptive and not speculation.trusts[by].resting:
                self._judge(request, speculation.trusts[by], bid)
            n = bid.granted if speculation.adaptive else bid.n
            if n:
                wanted.setdefault(speculation.drafts[by], []).append((request, speculation, n))
        return wanted

    def _bid(self, request: TextRequest, speculation: Speculation, by: int) -> Bid:
        sequence, trust = request.sequence, speculation.trusts[by]
        n = min(speculation.k, sequence.n_reserve - len(sequence.tokens))
        draft = speculation.drafts[by]
        seconds = self._seconds(draft)
        if not speculation.adaptive:
            return Bid(trust.chance, n)
        if not trust.resting:
            return Bid(trust.chance, n if trust.chance >= LEAST_CHANCE else 0, seconds, draft)
        return Bid(TRY_CHANCE, min(n, trust.resting <= len(sequence.tokens)), seconds, draft)

    def _judge(self, request: TextRequest, trust: Trust, bid: Bid) -> None:
        """Whether a draft is of use for a request, were that alone; a full batch is no fault of the draft's."""
        alone = Bid(bid.chance, bid.n, bid.seconds)
        if not bid.granted:
            best_bids(self.costs, 1, [alone], MAX_GUESSES)
        if bid.granted:
            trust.resume()
        elif not alone.granted:
            trust.rest(len(request.sequence.tokens))

    def _seconds(self, draft: Draft) -> float:
        """What a round of a draft takes: a token more for everybody who uses it. 0.0 as long as that is not known."""
        if self._n_asked > self._timed.get(draft, 0) + KEPT_STEPS:
            self._times.pop(draft, None)  # what was slow by chance, and is not asked any more, would stay so for ever
        times = self._times.get(draft)
        return min(times) if times else 0.0  # as of steps: what else runs makes it slower, never quicker

    def _propose(self, draft: Draft, by: int, wanted: list[Wanted]) -> int:
        """Asks one draft for all who use it; how many tokens it guessed."""
        tasks = [_task(*one) for one in wanted]
        marks = [request.sampler.memory.n_accepted for request, _, _ in wanted]
        new = [speculation for _, speculation, _ in wanted if draft not in speculation.asked]
        for speculation in new:
            speculation.asked.add(draft)
        began = time.perf_counter()
        proposals = draft.propose(tasks)
        seconds = time.perf_counter() - began
        _check(draft, proposals, tasks)
        total = 0
        for (request, speculation, _), mark, proposal in zip(wanted, marks, proposals, strict=True):
            request.sampler.rewind(request.sampler.memory.n_accepted - mark)
            request.sequence.ahead = _checked(request, speculation, proposal)
            speculation.proposed(by, proposal.probs, seconds)
            total += len(request.sequence.ahead)
        if not new and not any(speculation.trusts[by].resting for _, speculation, _ in wanted):
            self._time(draft, seconds, [len(proposal.tokens) for proposal in proposals])
        return total

    def _time(self, draft: Draft, seconds: float, counts: list[int]) -> None:
        """Takes note of what a draft took that had nothing to read but what came since the last step."""
        if all(counts) or not any(counts):  # else it is still at the prompts of some
            self._times.setdefault(draft, deque(maxlen=KEPT_TIMES)).append(seconds / max(1, *counts))
            self._timed[draft] = self._n_asked

    def forget(self, request: TextRequest) -> None:
        """A request ended."""
        speculation = self.requests.pop(request, None)
        if speculation is None:
            return
        first = speculation.drafts[0]
        self.totals[first] = self.totals.get(first, SpecStats()) + speculation.stats()
        for draft in speculation.release():
            try:
                draft.forget(request.sequence.id)
            except Exception:
                log.exception("the draft %s failed to forget a text that ended", type(draft).__name__)


def _may_guess(request: TextRequest, speculation: Speculation) -> bool:
    """Whether a request lacks one token that was drawn, and has more than one to draw.

    Also one that waits with all else computed, as after a fork or from a snapshot: it gets its guesses in the step that
    it begins with, and so the tokens that it would have had without a break.
    """
    s = request.sequence
    if not (s.running or s.queued) or s.ahead or s.n_again or not s.decodes:
        return False
    return s.n_prompt < len(s.tokens) < s.n_reserve and speculation.k > 0


def _task(request: TextRequest, speculation: Speculation, n: int) -> DraftTask:
    sequence = request.sequence
    with_probs = speculation.acceptance == "rejection"
    return DraftTask(sequence.id, sequence.tokens, n, request.sampler, with_probs, sequence.cache_key)


def _check(draft: Draft, proposals: Any, tasks: list[DraftTask]) -> None:
    """Raises GenerateError unless there is one proposal for each task, and it is one."""
    name = type(draft).__name__
    if not isinstance(proposals, list) or len(proposals) != len(tasks):
        raise GenerateError(f"the draft {name} must propose a list of {len(tasks)}, one for each task")
    for task, proposal in zip(tasks, proposals, strict=True):
        if not isinstance(proposal, Proposal) or not isinstance(proposal.tokens, list):
            raise GenerateError(f"the draft {name} must propose a Proposal with a list of tokens, not {proposal!r}")
        if len(proposal.tokens) > task.n:
            raise GenerateError(f"the draft {name} proposed {len(proposal.tokens)} tokens where {task.n} were wanted")
        if proposal.probs is not None and len(proposal.probs) != len(proposal.tokens):
            raise GenerateError(f"the draft {name} proposed {len(proposal.tokens)} tokens and other numbers of probs")


def _checked(request: TextRequest, speculation: Speculation, proposal: Proposal) -> list[int]:
    """The guesses to be verified. Raises GenerateError for what is no token, and for probabilities that are none."""
    for token in proposal.tokens:
        if type(token) is not int or not 0 <= token < request.n_vocab:
            raise GenerateError(f"a draft proposed the token {token!r}: ids are integers below {request.n_vocab}")
    if speculation.acceptance == "match":
        return _possible(request, proposal.tokens)
    # All of them: to leave a guess out for what it is would make it less likely.
    if proposal.probs is not None:
        check_probs(proposal.tokens, proposal.probs)
    return list(proposal.tokens)


def _possible(request: TextRequest, tokens: Iterable[int]) -> list[int]:
    """The guesses up to the first that the text can't go on with: an end, or one against its grammar."""
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
