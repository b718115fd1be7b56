"""Cost model of speculation: how many draft tokens pay, from measured step times and acceptance."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

__all__ = [
    "Bid",
    "StepCosts",
    "Trust",
    "best_bids",
]

# What a row more costs, as part of a step of one row, where nothing is measured. On the shape of Llama 3.2 1B (Q4_K_M,
# two cores) it is 0.06 up to 8 rows, and 0.1 up to 16.
ROW_SHARE = 0.06
# It costs at least this: measured times of equal steps differ by more.
LEAST_ROW_SHARE = 0.02
# Of so many measurements the quickest counts: what else runs on the machine makes a step slower, never quicker.
KEPT_TIMES = 7
# Fewer than so many count in part, beside what one row takes and rows more usually cost.
SURE_TIMES = 4
# Measurements count for so many steps: what was slow by chance, and is therefore not tried, would stay so for ever.
KEPT_STEPS = 256
# After so many steps with guesses one without them is measured again: what guesses gain is known by that alone. Where
# nine tokens come of a step it costs 0.7 % of them. At first it is sooner, after 4, 8, 16, ... steps: the first step of
# all is cold, and of a small model took 2.4 times as long as others. With that as all that was known, guesses seemed to
# pay that made a text four times slower.
FIRST_FRESH, FRESH_STEPS = 4, 128
# Guesses whose chance is below this are not worth trying, whatever the times say.
LEAST_CHANCE = 0.1
# Weight of what was seen before against each guess more: the last twenty count. With five, one wrong guess shut a draft
# off that was right 85 times of 100, and its gain of 1.25 times was lost.
DECAY = 0.95
# Before anything was seen: this chance, as if it came of so many guesses. With a weight of 2, a draft that is never
# right cost 3 % of 128 tokens instead of 1.6 %, and one that is right half of the time or more gained no more.
FIRST_CHANCE, FIRST_WEIGHT = 0.7, 0.5
# Tokens without guesses, the first time they don't pay; twice as many each time after that, up to the most. One row
# more costs about a fifth of a step, so a try in 16 tokens costs 1.2 %, and in 32 half of that.
FIRST_REST, MOST_REST = 16, 256
# What a try after a rest is taken to be worth, so that it is left out where even good guesses would not pay.
TRY_CHANCE = 0.9


class StepCosts:
    """Seconds of the steps in which everybody decodes, by their number of rows; as measured, or as far as is known."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._rows: list[int] = []  # those that were measured, rising
        self._at: dict[int, int] = {}  # in which step they were the last time
        self._n_steps = 0
        self._n_asked = self._plain_from = 0  # from which number of asking on a step without guesses may be measured
        self._gap = FIRST_FRESH // 2

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        self._n_steps += 1
        if rows not in self._times:
            self._times[rows] = deque(maxlen=KEPT_TIMES)
            self._rows.insert(bisect_left(self._rows, rows), rows)
        self._times[rows].append(seconds)
        self._at[rows] = self._n_steps
        if self._n_steps % KEPT_TIMES == 0:
            for old in [n for n in self._rows if self._at[n] + KEPT_STEPS < self._n_steps]:
                del self._times[old], self._at[old]
                self._rows.remove(old)

    def seconds(self, rows: int) -> float:
        """What a step of so many rows is expected to take; 1.0 for one row as long as nothing is known."""
        known = self._rows
        if not known:
            return _share(rows)
        i = bisect_left(known, rows)
        if i == len(known) or i == 0:
            nearest = known[max(0, i - 1)]
            return self._known(nearest) * _share(rows) / _share(nearest)
        if known[i] == rows:
            return self._known(rows)
        low, high = known[i - 1], known[i]
        quick, slow = self._known(low), self._known(high)
        return quick + (slow - quick) * (rows - low) / (high - low)

    def wants_plain(self, rows: int) -> bool:
        """Whether a step of so many rows is to be measured without guesses, which is taken to be done then.

        It is not if one of so many rows, or fewer, was measured lately: what is known of more tells little of it. If
        prompts are beside, it is in vain, and not asked for again at once.
        """
        known = any(self._at[n] + self._gap > self._n_steps for n in self._rows[: bisect_right(self._rows, rows)])
        self._n_asked += 1
        if known or self._n_asked < self._plain_from:
            return False
        self._gap = min(2 * self._gap, FRESH_STEPS)
        self._plain_from = self._n_asked + self._gap
        return True

    def _known(self, rows: int) -> float:
        """Of a number of rows that was measured."""
        times, one = self._times[rows], self._times.get(1)
        sure = min(1.0, len(times) / SURE_TIMES) if one else 1.0
        return sure * min(times) + (1.0 - sure) * min(one or times) * _share(rows)

    def after(self, rows: int, n_more: int) -> list[float]:
        """Of steps of `rows`, and up to n_more rows beside those; they rise.

        What was measured of more rows bounds what fewer rows can cost.
        """
        found = [self.seconds(rows + n) for n in range(n_more + 1)]
        for n in range(n_more, 0, -1):
            found[n - 1] = min(found[n - 1], found[n])
        least = found[0] * LEAST_ROW_SHARE / rows
        return [max(seconds, found[0] + least * n) for n, seconds in enumerate(found)]


def _share(rows: int) -> float:
    return 1.0 + ROW_SHARE * (rows - 1)


class Trust:
    """How far the guesses of one draft for one text are to be trusted.

    chance: of a guess to come true, if those before it did. resting: until the text has this many tokens, nothing is
    asked of the draft; then it gets a try.
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
    def hope(self) -> float:
        """What the chance may well be by what little was seen: one standard deviation above it."""
        chance = self.chance
        return min(1.0, chance + math.sqrt(chance * (1.0 - chance) / self._seen))

    def observe(self, n_right: int, n_guessed: int) -> None:
        """Of n_guessed, the first n_right came true; nothing is known of those after the first wrong one."""
        for i in range(min(n_right + 1, n_guessed)):
            self._right = self._right * DECAY + (i < n_right)
            self._seen = self._seen * DECAY + 1.0
        self.resting = 0

    def rest(self, n_tokens: int) -> None:
        """It did not pay for a text that has n_tokens now."""
        self.resting = n_tokens + self._rest
        self._rest = min(2 * self._rest, MOST_REST)

    def put_off(self, n_tokens: int) -> None:
        """A try would not pay now, or there is no room for it: to ask at every token would cost more than that."""
        self.resting = n_tokens + FIRST_REST

    def resume(self) -> None:
        """It pays again: the next rest is as short as the first."""
        self.resting, self._rest = 0, FIRST_REST


class Bid:
    """What one text could have guessed: at most n tokens, each with this chance if those before it came true.

    seconds: that a round of its draft takes, which guesses the next token of all texts that use it. granted: how many
    tokens it gets.
    """

    __slots__ = ("chance", "draft", "granted", "n", "seconds")

    def __init__(self, chance: float, n: int, seconds: float = 0.0, draft: object = None) -> None:
        self.draft = draft
        self.chance = chance
        self.n = n
        self.seconds = seconds
        self.granted = 0


def best_bids(costs: StepCosts, rows: int, bids: Sequence[Bid], most: int) -> None:
    """Grants what gives the most expected tokens per second in a step that has `rows` rows, of a token each, already.

    most: tokens of all together.

    A row more is the next guess of some text, likeliest first; with k of them a text of chance a gives
    1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens (Leviathan et al. 2023). All numbers of rows are looked at, since
    a step of a few rows more may cost nothing more.
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
