"""Prefill throttle: prompt tokens that fit into a step beside decoding sequences, by the measured times of steps."""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = [
    "DECODE_STEPS",
    "DEPTH",
    "LEAST_CHUNK",
    "MAX_DECODE_WAIT_MS",
    "USED_SHARE",
    "PrefillThrottle",
]

# Beside prompts, a decoding sequence waits for its next token no longer than for two of its own steps, and this.
MAX_DECODE_WAIT_MS = 100
# Part of the wait for prompts that is used: measured times of equal steps differ, and what sends a token to a client
# comes on top. With times that scatter by a twentieth, the longest of 200 steps took 0.85 of what is allowed, and 0.92
# with a share of 0.75, with which a prompt took 0.95 of the time.
USED_SHARE = 0.65
# Prompt tokens of a step at least, or a prompt would never end. Few of them cost no more each than many: on the shape
# of Llama 3.2 1B (Q4_K_M, one thread, CPU time) 12 tokens beside four sequences took 7 ms each, and 64 took 8, where a
# step without any took 44. So 8 add little more than another decode step, and not too much up to one of a second.
LEAST_CHUNK = 8
# Steps with prompts until one is taken without, to measure the decoding sequences' own pace, which changes with their
# number and depth and with what else the machine does. Of the time of all steps it is 3 % at most.
DECODE_STEPS = 32
# Steps with prompts until one is taken without in any case, where prompts of other owners are to have as much time.
EQUAL_STEPS = 4 * DECODE_STEPS
# Of so many measurements the median counts. With the last alone, a chunk was too long whenever the step before had been
# quick by chance: of times that scatter by a tenth, the longest step took 1.1 of what is allowed instead of 0.98.
KEPT_TIMES = 5
# Depth at which attention costs no more than all else of a token: it costs as much at 1,400 tokens with the shipped
# model, and at 4,200 with the shape of Llama 3.2 1B. With a smaller number, only the first deeper chunk is smaller.
DEPTH = 1024
# Prompt tokens whose time a decoding sequence takes of a step, at most.
MAX_ROW_WORK = 64.0
# Time that a step takes however few sequences it has, in decoding sequences: weights are read once for all. It is that
# of 4 to 7 with SmolLM2 135M, and of 6 with the shape of Llama 3.2 1B.
FIXED_ROWS = 6
# Prompt tokens of a step, for each decoding sequence beside them, that take no less time than all of these where the
# prompt is another owner's: a sequence takes the time of 1.5 to 2.7 tokens, by its depth.
EQUAL_ROW_TOKENS = 2


class PrefillThrottle:
    """Fits prompt tokens into the wait that decoding sequences are allowed, by the measured times of steps.

    It never changes what is computed, only in which step. As long as nothing is measured, a step has LEAST_CHUNK prompt
    tokens, and each chunk has at most twice the tokens of the one before: a chunk of 512 on the shape of Llama 3.2 1B
    would stall every stream for 1.7 seconds. A deeper chunk is expected to cost more by the growth of attention, which
    is linear, and a shallower one as much as the last.

    The scheduler calls `begin` for each step of decoding sequences that may have prompts too, and `fit` and `take` for
    each of these. The driver calls `observe` after a step with prompts (`n_taken`), and enters steps without them into
    `decodes`: number of sequences, and seconds.

    n_taken: prompt tokens of the step under way, beside decoding sequences.
    """

    def __init__(self, most: int) -> None:
        """`most`: tokens of a step, however quick it is."""
        self.most = most
        self.decodes: deque[tuple[int, float]] = deque(maxlen=KEPT_TIMES)
        self._n_mixed = 0  # steps with prompts since one was taken without
        self._costs: deque[tuple[float, float]] = deque(maxlen=KEPT_TIMES)  # seconds of a prompt token, at a depth
        self._limit = LEAST_CHUNK  # of the next chunk
        self._least = LEAST_CHUNK  # of the step under way
        # Of the step under way. none: without prompts, to be measured. equal: as `begin` has it.
        self._none = self._equal = False
        self.n_taken = self._fitting = self._depths = 0
        self._decode_seconds = self._left = 0.0

    def begin(self, n_decode: int, *, equal: bool = False) -> None:
        """A step of so many decoding sequences is planned. equal: its prompts, of another owner than theirs, are to
        have as much time, and hardly ever wait for a step that is measured."""
        self.n_taken = self._depths = 0
        self._equal = equal
        # Never two in a row: if single tokens of prompts come in every step, none is ever measured.
        most = EQUAL_STEPS if equal else DECODE_STEPS
        self._none = not self._none and ((not self.decodes and not equal) or self._n_mixed >= most)
        if self._none:
            self._n_mixed = 0
            return
        self.beside(n_decode)
        own, share = self._decode_seconds, 1.0
        if self.decodes and not equal:  # of fewer sequences a step takes no less than their part of it
            own, share = median([s * min(1.0, n_decode / n) for n, s in self.decodes]), USED_SHARE
        self._left = share * (own + MAX_DECODE_WAIT_MS / 1000)
        self._least = LEAST_CHUNK + EQUAL_ROW_TOKENS * n_decode if equal else max(LEAST_CHUNK, n_decode)

    def beside(self, n_decode: int) -> None:
        """Corrects the number of decoding sequences in the step; `begin` may have expected more."""
        if self.decodes:
            self._decode_seconds = self._decode_time(n_decode)

    def row_work(self, n_decode: int) -> float:
        """Time that each of so many decoding sequences takes of a step, in tokens of a prompt at depth 0; 1 as long as
        it isn't measured."""
        seconds = self._seconds(0)
        if not self.decodes or seconds <= 0.0 or not n_decode:
            return 1.0
        return min(max(self._decode_time(n_decode) / n_decode / seconds, 1.0), MAX_ROW_WORK)

    def fit(self, depth: int, n: int = 0) -> int:
        """Prompt tokens that fit into what is left of the step, for a prompt of which so many tokens are computed, and
        n are left. Where few would be left over, which then wait for another step, another owner's prompt has all."""
        if self._none:
            return 0
        limit, seconds = min(self.most, self._limit) - self.n_taken, self._seconds(depth)
        fitting = int(min(limit, self._left / seconds)) if seconds > 0 else limit
        least = max(int(self._least * DEPTH / (DEPTH + depth)), LEAST_CHUNK)
        fitting = max(fitting, min(self.most, least) - self.n_taken, 0)
        if self._equal and 0 < n - fitting <= max(LEAST_CHUNK, fitting // 8):
            fitting = n
        self._fitting = self.n_taken + fitting
        return fitting

    def take(self, n: int, depth: int) -> None:
        """Counts tokens of a prompt that are in the step."""
        self.n_taken += n
        self._depths += n * depth
        self._left -= n * self._seconds(depth)

    def observe(self, n_prompt: int, seconds: float) -> None:
        """The step has computed so many prompt tokens and took so long.

        Steps with fewer than LEAST_CHUNK prompt tokens say little about others, and change nothing.
        """
        self._n_mixed += 1
        if n_prompt >= min(self.most, LEAST_CHUNK):
            cost = max(seconds - self._decode_seconds, 0.0) / n_prompt
            self._costs.append((cost, self._depths / self.n_taken))
            # A chunk that was short because its prompt ended doesn't hold up the next prompt.
            self._limit = max(2 * n_prompt, self._limit if self.n_taken < self._fitting else 0)
        self.n_taken = 0

    def _seconds(self, depth: int) -> float:
        """Expected seconds of a prompt token at a depth; 0 as long as nothing is measured."""
        if not self._costs:
            return 0.0
        return median([cost * max(1.0, (DEPTH + depth) / (DEPTH + at)) for cost, at in self._costs])

    def _decode_time(self, n_decode: int) -> float:
        """Expected seconds of a step of so many decoding sequences: by the line through what was measured (Theil and
        Sen), and as if a step took FIXED_ROWS more as long as all were of one number."""
        known = self.decodes
        slopes = [(t - s) / (m - n) for n, s in known for m, t in known if m > n]
        slopes += [s / (n + FIXED_ROWS) for n, s in known]
        slope = max(median(slopes), 0.0)
        return max(median([s + slope * (n_decode - n) for n, s in known]), 0.0)
