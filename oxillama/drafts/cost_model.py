"""Cost model of speculation: how many draft tokens pay, from measured step times and acceptance."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

__all__ = [
    "AcceptanceEstimate",
    "DraftRequest",
    "StepTimeModel",
    "allocate_drafts",
    "median",
]

# Cost of one more row, as part of a step of one row, where nothing is measured. On the shape of Llama 3.2 1B (Q4_K_M,
# two cores) it is 0.06 up to 8 rows, and 0.1 up to 16.
ROW_SHARE = 0.06
# Least cost of one more row: measured times of equal steps differ by more.
LEAST_ROW_SHARE = 0.02
# Of so many comparisons the median counts.
KEPT_TIMES = 7
# A step is compared with so many before it and as many after it, of which at least so many have another number of rows.
BESIDE, LEAST_BESIDE = 3, 2
MOST_PAIRS = 64  # of numbers of rows that are compared; the one whose last comparison is the oldest leaves
# Steps that take so many times as long as when numbers of rows were last compared, or as short: these are compared
# anew, with so many of the earlier comparisons, but no more often than after so many steps.
SHIFT, SHIFT_KEPT, SHIFT_STEPS = 1.5, 2, 64
# One alone counts by half, averaged with the usual cost of more rows.
SURE_TIMES = 2
# Measurements count for so many steps: a number of rows that was slow by chance would never be tried again otherwise.
KEPT_STEPS = 256
# After so many steps with draft tokens, one without them is measured again, since the gain is measured against it.
# Where a step gives nine tokens this costs 0.7 % of them. At first it is sooner, after 4, 8, 16, ... steps: the very
# first step is cold, and with a small model took 2.4 times as long as others. With only that measured, draft tokens
# seemed to pay that made a text four times slower.
FIRST_FRESH, FRESH_STEPS = 4, 128
# Draft tokens with a lower chance are not worth trying, whatever the measured times.
LEAST_CHANCE = 0.1
# Weight of earlier observations against each further draft token: the last twenty count. With five, one rejected token
# shut off a draft with an acceptance of 85 %, and its gain of 1.25 times was lost.
DECAY = 0.95
# Chance before any observation, as if from so many draft tokens. With a weight of 2, a draft that is always rejected
# cost 3 % of 128 tokens instead of 1.6 %, and one accepted half of the time or more gained no more.
FIRST_CHANCE, FIRST_WEIGHT = 0.7, 0.5
# Tokens without drafts, the first time they don't pay; twice as many each time after that, up to the most. One row
# more costs about a fifth of a step, so a try in 16 tokens costs 1.2 %, and in 32 half of that.
FIRST_REST, MOST_REST = 16, 256
# Chance assumed for a try after a pause, so that it is left out where even good drafts would not pay.
TRY_CHANCE = 0.9


class StepTimeModel:
    """Seconds of a step of decoding sequences by its number of rows: measured, or estimated from the measured ones.

    Numbers of rows are compared side by side: what is kept is how many times as long one step took as others just
    before and after it that had another number of rows. Other load on the machine makes all of them slower. If seconds
    were compared that were measured at different times, a load that comes would make draft tokens look dear, since
    steps with them are measured all the time and steps without them seldom.
    """

    def __init__(self) -> None:
        self._near: deque[tuple[int, float]] = deque(maxlen=2 * BESIDE + 1)  # rows and seconds of the last steps
        self._ratios: dict[tuple[int, int], deque[float]] = {}  # of seconds, of more rows to fewer
        self._rows: list[int] = []  # numbers of rows of the last steps, rising
        self._at: dict[int, int] = {}  # the last step with this number of rows
        self._costs: dict[int, float] = {}  # of the numbers of rows that were compared, in units of the level
        self._n_steps = self._shifted_at = 0
        self._compared_at = 0.0  # the level, when numbers of rows were last compared
        self._n_asked = self._plain_from = 0  # the call from which on a step without drafts may be measured
        self._gap = FIRST_FRESH // 2

    @property
    def level(self) -> float:
        """Seconds of a unit of cost on this machine now: the seconds of something are its cost times this."""
        if not self._near:
            return 1.0
        rows, seconds = self._near[-1]
        return seconds / self._cost(rows)

    def observe(self, rows: int, seconds: float) -> None:
        """Enters the measured time of a step."""
        self._n_steps += 1
        if rows not in self._at:
            self._rows.insert(bisect_left(self._rows, rows), rows)
        self._at[rows] = self._n_steps
        self._near.append((rows, seconds))
        self._compare()
        if self._n_steps % KEPT_TIMES == 0:
            self._forget_old()
            self._notice_shift()

    def _compare(self) -> None:
        """Compares the step that has as many after it as it may have before it; not the first of all, which is cold."""
        at = len(self._near) - 1 - BESIDE
        if at < 0 or self._n_steps == BESIDE + 1:
            return
        rows, seconds = self._near[at]
        for other in {n for n, _ in self._near if n != rows}:
            beside = [s for n, s in self._near if n == other]
            if len(beside) >= LEAST_BESIDE and seconds > 0.0 and (usual := median(beside)) > 0.0:
                few, more = (seconds, usual) if rows < other else (usual, seconds)
                self._enter((min(rows, other), max(rows, other)), more / few)

    def _enter(self, pair: tuple[int, int], ratio: float) -> None:
        ratios = self._ratios.pop(pair, None) or deque(maxlen=KEPT_TIMES)
        ratios.append(ratio)
        self._ratios[pair] = ratios  # at the end
        if len(self._ratios) > MOST_PAIRS:
            del self._ratios[next(iter(self._ratios))]
        self._costs = self._found_costs()
        self._compared_at = self.level

    def _found_costs(self) -> dict[int, float]:
        """Costs of all numbers of rows that were compared with the least one, or with others that were."""
        beside: dict[int, list[tuple[int, float]]] = {}
        for (few, more), ratios in self._ratios.items():
            sure = min(1.0, len(ratios) / SURE_TIMES)
            ratio = sure * median(ratios) + (1.0 - sure) * _share(more) / _share(few)
            beside.setdefault(few, []).append((more, ratio))
            beside.setdefault(more, []).append((few, 1.0 / ratio))
        todo = self._rows[:1]
        found = {rows: _share(rows) for rows in todo}
        for rows in todo:
            for other, ratio in beside.get(rows, ()):
                if other not in found:
                    found[other] = found[rows] * ratio
                    todo.append(other)
        return dict(sorted(found.items()))

    def _forget_old(self) -> None:
        """Drops numbers of rows that no step had for long."""
        for old in [n for n in self._rows if self._at[n] + KEPT_STEPS < self._n_steps]:
            self._rows.remove(old)
            del self._at[old]
            for pair in [pair for pair in self._ratios if old in pair]:
                del self._ratios[pair]
            self._costs = self._found_costs()

    def _notice_shift(self) -> None:
        """Has numbers of rows compared anew where the level isn't that of the last comparison."""
        level = median(seconds / self._cost(rows) for rows, seconds in self._near)
        low, high = sorted((level, self._compared_at))
        if high > SHIFT * low and self._n_steps >= self._shifted_at + SHIFT_STEPS:
            self._shifted_at, self._compared_at = self._n_steps, level
            self._gap, self._plain_from = FIRST_FRESH // 2, 0
            for ratios in self._ratios.values():
                while len(ratios) > SHIFT_KEPT:
                    ratios.popleft()

    def seconds(self, rows: int) -> float:
        """Expected seconds of a step of so many rows; 1.0 for one row as long as nothing is measured."""
        return self._cost(rows) * self.level

    def _cost(self, rows: int) -> float:
        """Seconds in units of the level: of a number that was compared, or by its neighbours that were."""
        known = list(self._costs)
        if not known:
            return _share(rows)
        i = bisect_left(known, rows)
        if i == len(known) or i == 0:
            nearest = known[max(0, i - 1)]
            return self._costs[nearest] * _share(rows) / _share(nearest)
        if known[i] == rows:
            return self._costs[rows]
        low, high = known[i - 1], known[i]
        quick, slow = self._costs[low], self._costs[high]
        return quick + (slow - quick) * (rows - low) / (high - low)

    def wants_plain(self, rows: int) -> bool:
        """Whether a step of so many rows is to be measured without drafts; if so, it counts as measured.

        Not if a step of so many rows, or fewer, was measured lately: those of more rows say little about it. If the
        step has prompts too, the measurement fails, and isn't repeated at once.
        """
        known = any(self._at[n] + self._gap > self._n_steps for n in self._rows[: bisect_right(self._rows, rows)])
        self._n_asked += 1
        if known or self._n_asked < self._plain_from:
            return False
        self._gap = min(2 * self._gap, FRESH_STEPS)
        self._plain_from = self._n_asked + self._gap
        return True

    def after(self, rows: int, n_more: int) -> list[float]:
        """Seconds of steps of `rows` and up to n_more further rows; they rise.

        A measurement of more rows is an upper bound for fewer.
        """
        found = [self.seconds(rows + n) for n in range(n_more + 1)]
        for n in range(n_more, 0, -1):
            found[n - 1] = min(found[n - 1], found[n])
        least = found[0] * LEAST_ROW_SHARE / rows
        return [max(seconds, found[0] + least * n) for n, seconds in enumerate(found)]


def median(values: Iterable[float]) -> float:
    """The value in the middle; the lower one of two."""
    found = sorted(values)
    return found[(len(found) - 1) // 2]


def _share(rows: int) -> float:
    return 1.0 + ROW_SHARE * (rows - 1)


class AcceptanceEstimate:
    """Estimate of the acceptance of one draft's tokens for one request.

    chance: probability that a draft token is accepted, if those before it were. resting: until the text has this many
    tokens, the draft is not used; then it gets a try.
    """

    __slots__ = ("_rest", "_right", "_seen", "resting")

    def __init__(self) -> None:
        self._right, self._seen = FIRST_CHANCE * FIRST_WEIGHT, FIRST_WEIGHT
        self._rest = FIRST_REST
        self.resting = 0

    @property
    def chance(self) -> float:
        return self._right / self._seen

    @property
    def upper_bound(self) -> float:
        """Upper bound of the chance with few observations: one standard deviation above it."""
        chance = self.chance
        return min(1.0, chance + math.sqrt(chance * (1.0 - chance) / self._seen))

    def observe(self, n_accepted: int, n_drafted: int) -> None:
        """Enters that the first n_accepted of n_drafted tokens were accepted; those after that don't count."""
        for i in range(min(n_accepted + 1, n_drafted)):
            self._right = self._right * DECAY + (i < n_accepted)
            self._seen = self._seen * DECAY + 1.0
        self.resting = 0

    def pause(self, n_tokens: int) -> None:
        """Stops the draft for a while, since it did not pay. n_tokens: length of the text now."""
        self.resting = n_tokens + self._rest
        self._rest = min(2 * self._rest, MOST_REST)

    def postpone(self, n_tokens: int) -> None:
        """Delays the next try, which would not pay or has no room now: to consider it at every token costs more."""
        self.resting = n_tokens + FIRST_REST

    def resume(self) -> None:
        """Ends a pause, since the draft pays again: the next one is as short as the first."""
        self.resting, self._rest = 0, FIRST_REST


class DraftRequest:
    """Request of one text for draft tokens: at most n, each accepted with this chance if those before it are.

    seconds: time of a round of its draft, which drafts the next token of all texts that use it. granted: number of
    draft tokens that it gets.
    """

    __slots__ = ("chance", "draft", "granted", "n", "seconds")

    def __init__(self, chance: float, n: int, seconds: float = 0.0, draft: object = None) -> None:
        self.draft = draft
        self.chance = chance
        self.n = n
        self.seconds = seconds
        self.granted = 0


def allocate_drafts(costs: StepTimeModel, rows: int, bids: Sequence[DraftRequest], most: int) -> None:
    """Grants the draft tokens that give the most expected tokens per second, in a step that has `rows` rows already.

    most: draft tokens of all texts together.

    Each further row is the next draft token of some text, likeliest first; with k of them a text of chance a gives
    1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens (Leviathan et al. 2023). All numbers of rows are tried, since a
    few rows more may cost nothing.
    """
    ladder = sorted(
        ((bid.chance**i, -i, bid) for bid in bids for i in range(1, bid.n + 1)),
        key=lambda rung: rung[:2],
        reverse=True,
    )[:most]
    seconds = costs.after(rows, len(ladder))
    tokens, spent = float(rows), 0.0
    rounds: dict[object, int] = {}
    best, n_best = tokens / seconds[0], 0
    for m, (chance, i, bid) in enumerate(ladder, 1):
        tokens += chance
        if -i > rounds.get(bid.draft, 0):
            rounds[bid.draft] = -i
            spent += bid.seconds
        if tokens / (seconds[m] + spent) > best:
            best, n_best = tokens / (seconds[m] + spent), m
    for _, i, bid in ladder[:n_best]:
        bid.granted = max(bid.granted, -i)
