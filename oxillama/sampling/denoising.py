"""Denoising of masked texts: which masks become tokens with a step, and which tokens, by the model's logits.

Nie et al., "Large Language Diffusion Models", 2025 (LLaDA): blocks of positions, in each of which equally many become
tokens with every step. Ye et al., "Dream 7B", 2025: times that fall from 1 to eps. The authors' code has the details.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels import elementary
from oxillama.text_settings import DiffusionSettings

__all__ = ["MaskedText", "Step"]

LEAST = 1e-10  # what is added to probabilities before their logarithms, in the authors' code


class Step(NamedTuple):
    """Work of one step: texts to compute, of each the rows of logits that are wanted, and the places they are for.

    n: how many places become tokens; of ``last``, all.
    """

    texts: list[list[int]]
    wanted: NDArray[np.intp]
    places: list[int]
    n: float
    last: bool


class MaskedText:
    """A prompt and the positions after it, which begin as masks. shifted: logits are for the next place."""

    def __init__(self, prompt: list[int], mask: int, settings: DiffusionSettings, shifted: bool) -> None:
        """Raises ConfigError for settings that don't fit each other."""
        self.prompt, self.mask, self.settings = prompt, mask, settings
        self.tokens = prompt + [mask] * settings.max_tokens
        self.shifted = shifted if settings.shift_logits is None else settings.shift_logits
        self.order = settings.order or ("entropy" if self.shifted else "low_confidence")
        self.by_times = settings.eps is not None or (self.shifted and not settings.block_length)
        self.blocks = blocks_of(settings)
        self.rng = np.random.Generator(np.random.PCG64(settings.seed))

    @property
    def written(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[len(self.prompt) :]

    def steps(self, ends: Collection[int]) -> Iterator[Step]:
        """The steps, each of which is to be filled before the next; none after a block with an end token."""
        first = len(self.prompt)
        for start, length, n_steps in self.blocks:
            counts = self.counts(length, n_steps)
            for i in range(n_steps):
                places = [p for p in range(first + start, first + start + length) if self.tokens[p] == self.mask]
                if not places:
                    break
                texts = [list(self.tokens)]
                if self.settings.cfg_scale:
                    texts.append([self.mask] * first + self.written)
                yield Step(texts, np.array(places) - self.shifted, places, counts(i, len(places)), i == n_steps - 1)
            if any(token in ends for token in self.written[: start + length]):
                return

    def counts(self, length: int, steps: int) -> Callable[[int, int], float]:
        """Numbers of masks that a step takes away of so many: whole numbers in blocks, and by times what falls to
        them."""
        if not self.by_times:
            return lambda step, n_masks: length // steps + (step < length % steps)
        times = np.linspace(1, 1e-3 if self.settings.eps is None else self.settings.eps, steps + 1)
        return lambda step, n_masks: n_masks * float(1 - times[step + 1] / times[step])

    def guided(self, logits: list[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Logits of the places. Raises GenerateError for a model that computes NaN or infinity."""
        rows = [row.astype(np.float64) for row in logits]
        if not all(np.isfinite(row).all() for row in rows):
            raise GenerateError("the model's logits are NaN or infinite: the weights are damaged")
        return rows[0] if len(rows) == 1 else rows[1] + (self.settings.cfg_scale + 1) * (rows[0] - rows[1])

    def fill(self, step: Step, logits: list[NDArray[np.float32]]) -> None:
        """Writes tokens into some of the step's places. logits: of each of its texts, float32 [places, n_vocab]."""
        places, n, last, rows = step.places, step.n, step.last, self.guided(logits)
        rows[:, self.mask] = -np.inf  # or it would stay what it is
        if self.order == "origin":
            share = 1.0 if last else min(1.0, n / len(places))
            for place, row in zip(places, rows, strict=True):
                if self.rng.random() < share:
                    self.tokens[place] = self.draw(row)[0]
            return
        drawn = [self.draw(row) for row in rows]
        sure = np.array([confidence for _, confidence in drawn])
        if self.settings.order_temperature:  # drawing without replacement: the largest of sums with Gumbel's noise
            sure = sure / self.settings.order_temperature - elementary.log(-elementary.log(self.rng.random(len(sure))))
        chosen = np.argsort(-sure, kind="stable")[: len(places) if last else int(n)]
        for i in chosen:
            self.tokens[places[i]] = drawn[i][0]

    def draw(self, row: NDArray[np.float64]) -> tuple[int, float]:
        """A token for a place, and how sure the model is of it in the sense of the order."""
        p = self.probabilities(row)
        if self.settings.temperature:
            sums = np.cumsum(p)
            token = int(np.searchsorted(sums, self.rng.random() * sums[-1], side="right"))
        else:
            token = int(np.argmax(p))
        match self.order:
            case "low_confidence":
                return token, float(softmax(row)[token])
            case "maskgit_plus":
                return token, float(p[token])
            case "topk_margin":
                second, best = np.partition(p, -2)[-2:] if len(p) > 1 else (0.0, p[0])
                return token, float(best - second)
            case "entropy":
                return token, float((p * elementary.log(p + LEAST)).sum())
        return token, float(self.rng.random())

    def probabilities(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the tokens that cuts leave: by temperature, then the fewest that make top_p, then the top_k
        likeliest."""
        s = self.settings
        p = softmax(row / s.temperature if s.temperature else row)
        if s.top_p < 1 or 0 < s.top_k < len(p):
            by_falling = np.argsort(-p, kind="stable")
            n = len(p)
            if s.top_p < 1:
                n = int(np.searchsorted(np.cumsum(p[by_falling]), s.top_p, side="right")) + 1
            p[by_falling[min(n, s.top_k or n) :]] = 0
            p /= p.sum()
        return p


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    p = elementary.exp(x - x.max())
    found: NDArray[np.float64] = p / p.sum()
    return found


def blocks_of(settings: DiffusionSettings) -> SequenceOf[tuple[int, int, int]]:
    """First position, length and steps of each block; one without blocks. Raises ConfigError for too few steps."""
    n, length = settings.max_tokens, settings.block_length
    if settings.eps is not None and length:
        raise ConfigError(f"eps is {settings.eps} and block_length {length}: times have no meaning in blocks, give one")
    length, steps = length or n, settings.steps or n
    n_blocks = -(-n // length)
    if steps < n_blocks:
        raise ConfigError(
            f"steps is {steps}, but {n} tokens in blocks of {length} need at least {n_blocks}: give more, or a larger "
            "block_length"
        )
    each, more = divmod(steps, n_blocks)
    return [(i * length, min(length, n - i * length), each + (i < more)) for i in range(n_blocks)]
