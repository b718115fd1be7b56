"""Selection of a draft model by measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int, check_type
from oxillama.config import EngineConfig, ModelSource, SamplerConfig
from oxillama.core.loading import own_tokenizer
from oxillama.engine.engine import Engine
from oxillama.errors import ConfigError, GenerateError, OxiLlamaError
from oxillama.models.registry import read_model_spec
from oxillama.sampling import SamplerChain
from oxillama.speculative.draft_model import check_same_vocabulary
from oxillama.speculative.synthesise import Source, check_generates, opened
from oxillama.tokenizer import Tokenizer

__all__ = [
    "DraftCandidate",
    "DraftSelection",
    "Probe",
    "expected_speedup",
    "select_draft",
]

SEED = 1
MAX_TOKENS = 64  # generated for each prompt
ROWS = (1, 2, 3, 5, 9, 17, 33)  # of the timed steps
REPEATS = 5
PROBE_CONTEXT = 512


@dataclass(frozen=True)
class ProbeText:
    """A prompt, the target's completion, and the target's logits where each token was drawn, [tokens, n_vocab]."""

    prompt: list[int]
    output: list[int]
    rows: NDArray[np.float32]


class Probe:
    """Completions of a target and the seconds of its steps, against which drafts are measured.

    Attributes:
        seconds: measured seconds of a step by its number of rows; others are interpolated.
    """

    def __init__(self, target: Engine, prompts: SequenceOf[str], sampler: SamplerConfig, num_speculative: int) -> None:
        self.sampler = replace(sampler, seed=SEED)
        self._factory = target.context.factory
        rows = [n for n in ROWS if n <= num_speculative + 1] + [num_speculative + 1]
        self.texts = [text for prompt in prompts if (text := self._text(target, prompt)).output]
        self.seconds: Mapping[int, float] = {n: step_seconds(target, n) for n in sorted(set(rows))}
        self.num_speculative = num_speculative

    def _text(self, target: Engine, prompt: str) -> ProbeText:
        ids = target.tokenize(prompt)
        output = target.generate(ids, max_tokens=MAX_TOKENS, sampler=self.sampler).token_ids
        rows = target.forward_logits(ids + output)[len(ids) - 1 : -1] if output else np.empty((0, 0), np.float32)
        return ProbeText(ids, output, rows)

    def acceptance(self, draft: Engine) -> float:
        """The share of the target's tokens that the draft draws too, from its own logits with the request's sampler in
        the same state.

        Raises GenerateError if no token can be drawn from the draft's logits, or if there is no completion.
        """
        hits = [hit for text in self.texts for hit in self._hits(text, draft)]
        if not hits:
            raise GenerateError("the target completes the probe's prompts with no token: give other prompts")
        return sum(hits) / len(hits)

    def _hits(self, text: ProbeText, draft: Engine) -> list[bool]:
        logits = draft.forward_logits(text.prompt + text.output)[len(text.prompt) - 1 : -1]
        sampler = self._factory.sampler(SamplerChain.from_config(self.sampler), text.prompt, ())
        hits = []
        for wanted, row, token in zip(text.rows, logits, text.output, strict=True):
            hits.append(sampler.copy().sample(row) == token)
            sampler.sample(wanted)  # advances the generator as in the completion
            sampler.accept(token)
        return hits

    def speedup(self, acceptance: float, draft_seconds: float) -> tuple[float, int]:
        """The best expected speed-up, and its number of draft tokens."""
        known = list(self.seconds)
        times = np.interp(range(1, self.num_speculative + 2), known, [self.seconds[n] for n in known])
        found = [
            (expected_speedup(acceptance, k, times[0], times[k], draft_seconds), k)
            for k in range(1, self.num_speculative + 1)
        ]
        return max(found, key=lambda pair: pair[0])


def expected_speedup(
    acceptance: float, k: int, plain_seconds: float, verify_seconds: float, draft_seconds: float
) -> float:
    """Ratio of tokens per second with k draft tokens and without (Leviathan et al. 2023, theorem 3.8).

    A round gives 1 + a + a² + … + a^k tokens if each draft token is accepted with probability a, independent of the
    others. It costs k steps of the draft, and one of the target with k + 1 rows.
    """
    tokens = sum(acceptance**i for i in range(k + 1))
    return float(tokens * plain_seconds / (k * draft_seconds + verify_seconds))


def step_seconds(engine: Engine, n_rows: int) -> float:
    """Seconds of the quickest of some steps that append n_rows tokens to a short text."""
    token = engine.tokenizer.n_vocab // 2
    with engine.session(cache_prompt=False) as session:
        session.prefill([token] * 16)
        found = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            session.prefill([token] * n_rows)
            found.append(time.perf_counter() - began)
    return min(found)


# A story, an explanation, and program text.
PROMPTS = ("Once upon a time", "The difference between the two is that", "def main():")


@dataclass(frozen=True)
class DraftCandidate:
    """Measurements of one candidate.

    source: as it was given. reason: why it was refused; "" for the chosen one. acceptance: share of the target's tokens
    that it drafts; seconds: of its step; speedup: expected with num_speculative draft tokens, the best number of them.
    These are 0 for candidates refused before they were measured.
    """

    source: Source
    reason: str = ""
    acceptance: float = 0.0
    seconds: float = 0.0
    speedup: float = 0.0
    num_speculative: int = 0


@dataclass(frozen=True)
class DraftSelection:
    """The best draft, and all candidates in the order in which they were given.

    choice: the source of the best, None if none makes the target faster. speedup: expected, 1.0 without a choice.
    num_speculative: number of tokens to draft. acceptance: share of the target's tokens that it drafts.
    """

    choice: Source | None
    speedup: float
    num_speculative: int
    acceptance: float
    candidates: tuple[DraftCandidate, ...]

    @property
    def refused(self) -> list[tuple[Source, str]]:
        """Each candidate that was not chosen, with the reason."""
        return [(c.source, c.reason) for c in self.candidates if c.reason]


def select_draft(
    target: Source,
    candidates: Iterable[Source],
    *,
    prompts: SequenceOf[str] = PROMPTS,
    sampler: SamplerConfig | None = None,
    num_speculative: int = 8,
) -> DraftSelection:
    """Selects the draft model with which the target decodes fastest.

    A candidate must have the target's vocabulary, token by token, and fewer bytes of weights. The others are loaded,
    and measured on the target's completions of `prompts` with `sampler` (default: the target's `sampling_defaults`):
    how often the draft draws the target's next token, and how long its steps take, compared with the target's steps of
    1 to num_speculative + 1 rows. The candidate with the highest expected speed-up is chosen, if that is above 1.

    target, candidates: engines, or the paths or bytes of models. Files that are broken, unreadable or of an unknown
    kind are refused as any other, with the reason. Measured times depend on the machine's other load.

    Raises ConfigError for arguments out of range; for the target, what `load` raises, and UnsupportedModelError if it
    is an encoder.
    """
    if sampler is not None:
        check_type("sampler", sampler, SamplerConfig)
    limit = check_int("num_speculative", num_speculative, 1, 32)
    sources, prompts = checked_sources(candidates), checked_prompts(prompts)
    with opened(target) as file:
        check_generates(read_model_spec(file))
        n_bytes = sum(t.nbytes for t in file.tensors.values())
    with loaded(target, None) as engine:
        probe = Probe(engine, prompts, sampler or engine.sampling_defaults, limit)
        measured = [measure(source, engine, n_bytes, probe) for source in sources]
    return chosen(measured)


def checked_sources(candidates: Iterable[Source]) -> list[Source]:
    if isinstance(candidates, str | bytes | os.PathLike | Engine):
        raise ConfigError(f"candidates must be a list of models, not one {type(candidates).__name__}")
    kinds = (Engine, str, os.PathLike, bytes, bytearray, memoryview)
    return [check_type(f"candidates[{i}]", source, *kinds) for i, source in enumerate(candidates)]


def checked_prompts(prompts: SequenceOf[str]) -> list[str]:
    if isinstance(prompts, str | bytes) or not isinstance(prompts, SequenceOf) or not prompts:
        raise ConfigError(f"prompts must be a list of at least one text, not {prompts!r}")
    return [check_type(f"prompts[{i}]", prompt, str) for i, prompt in enumerate(prompts)]


def loaded(source: Source, like: Engine | None) -> Engine | nullcontext[Engine]:
    """The engine itself, which stays open; or an engine for the probe alone, with the settings of `like`."""
    if isinstance(source, Engine):
        return nullcontext(source)
    with opened(source) as file:
        context_size = min(PROBE_CONTEXT, read_model_spec(file).context_length)
    settings = replace(like.config, overrides=None, rope=None, kv_budget=None) if like else EngineConfig()
    return Engine(
        replace(settings, model_path=cast(ModelSource, source), context_size=context_size, tokenizer_path=None)
    )


def measure(source: Source, target: Engine, target_bytes: int, probe: Probe) -> DraftCandidate:
    """Measures one candidate; any error becomes the reason of its refusal."""
    try:
        check_fits(source, target.tokenizer, target_bytes)
        with loaded(source, target) as draft:
            acceptance, seconds = probe.acceptance(draft), step_seconds(draft, 1)
    except (OxiLlamaError, OSError, MemoryError) as error:
        return DraftCandidate(source, str(error) or type(error).__name__)
    speedup, k = probe.speedup(acceptance, seconds)
    return DraftCandidate(source, "", acceptance, seconds, speedup, k)


def check_fits(source: Source, tokenizer: Tokenizer, target_bytes: int) -> None:
    """Checks a candidate's metadata, before its weights are read. Raises OxiLlamaError with the reason."""
    with opened(source) as file:
        check_generates(read_model_spec(file))
        n_bytes = sum(t.nbytes for t in file.tensors.values())
        if n_bytes >= target_bytes:
            raise ConfigError(f"it has {n_bytes} bytes of weights, no less than the target's {target_bytes}")
        check_same_vocabulary(source.tokenizer if isinstance(source, Engine) else own_tokenizer(file), tokenizer)


def chosen(measured: list[DraftCandidate]) -> DraftSelection:
    """The fastest, the first of equals; the others get their reasons."""
    fitting = [c for c in measured if not c.reason and c.speedup > 1.0]
    best = max(fitting, key=lambda c: c.speedup, default=None)
    done = tuple(c if c is best or c.reason else replace(c, reason=slower(c, best)) for c in measured)
    if best is None:
        return DraftSelection(None, 1.0, 0, 0.0, done)
    return DraftSelection(best.source, best.speedup, best.num_speculative, best.acceptance, done)


def slower(candidate: DraftCandidate, best: DraftCandidate | None) -> str:
    expected = f"expected speed-up {candidate.speedup:.2f} (acceptance {candidate.acceptance:.2f})"
    return (
        f"{expected}: slower than without a draft"
        if best is None or candidate.speedup <= 1.0
        else (f"{expected}: another has {best.speedup:.2f}")
    )
