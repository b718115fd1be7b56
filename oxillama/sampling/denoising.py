"""Denoising of masked texts: which masks become tokens with a step, and which tokens, by the model's logits.

Nie et al., "Large Language Diffusion Models", 2025 (LLaDA): blocks of positions, in each of which equally many become
tokens with every step. Ye et al., "Dream 7B", 2025: times that fall from 1 to eps. The authors' code has the details.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import MAX_CONTEXT, check_int
from oxillama._util.settings import check_fields, setting, settings
from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels import elementary
from oxillama.sampler_config import MAX_SEED

__all__ = ["DiffusionSettings", "MaskedText", "OnStep", "Step"]

ORDERS = ("low_confidence", "maskgit_plus", "topk_margin", "entropy", "random", "origin")
LEAST = 1e-10  # what is added to probabilities before their logarithms, in the authors' code

OnStep = Callable[[int, list[int | None]], object]


def _check_on_step(name: str, given: Any) -> OnStep:
    if not callable(given):
        raise ConfigError(f"{name} must be callable, not {type(given).__name__}")
    found: OnStep = given
    return found


@settings()
@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """Options of `Engine.diffuse`, checked; what depends on the model is None until `Denoising` knows it.

    {fields}
    """

    max_tokens: int = setting(
        128,
        "positions that are written; all of them, unless an end token comes before.",
        least=1,
        most=MAX_CONTEXT,
        brief="positions that are written",
    )
    steps: int | None = setting(
        None,
        "passes of the model, by default one for each position.",
        least=1,
        most=MAX_CONTEXT,
        brief="passes of the model; default: one for each position",
    )
    order: str | None = setting(
        None,
        "which positions become tokens first: those whose token is the likeliest, by the model "
        '("low_confidence", the default of LLaDA) or among what temperature and cuts leave ("maskgit_plus"); with the '
        'largest lead over the second ("topk_margin"); of the least entropy ("entropy", the default otherwise); '
        '"random"; or each by chance, whatever its token ("origin").',
        choices=ORDERS,
        brief="which positions become tokens first; default: the model's own",
    )
    block_length: int | None = setting(
        None,
        "positions of a block; blocks are written one after another, with equally many steps. By default all of "
        "LLaDA's are one. Without blocks, times decide how many positions a step writes.",
        check=lambda name, given: given,  # in __post_init__
        brief="positions of a block",
    )
    eps: float | None = setting(
        None,
        "the last of the times, which then take the place of LLaDA's block too; 0.001 for others. Not with "
        "block_length.",
        most=1,
        brief="the last of the times",
    )
    temperature: float = setting(
        0.0, "of the tokens, as for `generate`, like top_p and top_k; 0: the likeliest.", most=1e6, brief="of tokens"
    )
    top_p: float = setting(1.0, "of the tokens; 1: of all.", most=1, above=True, brief="of tokens")
    top_k: int = setting(0, "of the tokens; 0: of all.", most=1 << 31, brief="of tokens")
    order_temperature: float = setting(0.0, "above 0, the order is drawn, too.", most=1e6)
    cfg_scale: float = setting(
        0.0,
        "weight of the prompt beyond its own (classifier-free guidance); above 0, a step computes two texts.",
        most=1e6,
        brief="weight of the prompt beyond its own; above 0, a step computes two texts",
    )
    seed: int | None = setting(
        None,
        "the same seed gives the same text, whatever else runs; None is random.",
        most=MAX_SEED,
        brief="the same seed gives the same text",
    )
    mask_token: int | None = setting(
        None, "id of the mask, where the file names none.", check=lambda name, given: given, brief="id of the mask"
    )
    shift_logits: bool | None = setting(
        None,
        "whether logits are for the next place; None: what the file says.",
        brief="whether logits are for the next place",
    )
    on_step: OnStep | None = setting(
        None,
        "called after each step with its number from 1 on and the tokens, None where there is still a mask.",
        check=_check_on_step,
    )
    cancel_token: Any = setting(
        None,
        "lets another thread, or on_step, stop it; what there is before the first mask is returned.",
        check=lambda name, given: given,  # `Denoising` knows its type
    )
    lora: Any = setting(None, "adapters, as for `generate`.", check=lambda name, given: given)

    def __post_init__(self) -> None:
        """Raises ConfigError, which names the option, its value and the range."""
        check_fields(self)
        if self.block_length is not None:
            check_int("block_length", self.block_length, 1, self.max_tokens)
        if self.order_temperature and self.order == "origin":
            raise ConfigError(f'order_temperature is {self.order_temperature}, but order "origin" has no order to draw')


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
