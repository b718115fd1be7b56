"""Which of several models drafts best for a target, by what both cost and how often they agree."""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from contextlib import nullcontext
from dataclasses import dataclass, replace

from oxillama.checks import check_int, check_type
from oxillama.config import EngineConfig, SamplerConfig
from oxillama.engine import Engine
from oxillama.engine.loading import own_tokenizer
from oxillama.errors import ConfigError, OxiLlamaError
from oxillama.models import ModelSpec
from oxillama.speculative.probe import PROBE_CONTEXT, Probe, step_seconds
from oxillama.speculative.synthesise import Source, check_generates, opened
from oxillama.speculative.vocabulary import check_same_vocabulary
from oxillama.tokenizer import Tokenizer

__all__ = ["DraftCandidate", "DraftSelection", "select_draft"]

# Of stories, of explanation, and of program text.
PROMPTS = ("Once upon a time", "The difference between the two is that", "def main():")


@dataclass(frozen=True)
class DraftCandidate:
    """What was found out about one of the models.

    source: as it was given. reason: why it was refused; "" for the one that was chosen. acceptance: share of the
    target's tokens that it guesses; seconds: of its step; speedup: expected with num_speculative drafted tokens, the
    best number of them. These are 0 for models that were refused before they were measured.
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
    num_speculative: how many tokens it should draft. acceptance: share of the target's tokens that it guesses.
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
    """The model that makes decoding of the target fastest as its draft.

    A candidate must have the target's vocabulary, token by token, and fewer bytes of weights. What remains is loaded,
    and measured on what the target writes after `prompts` with `sampler` (default: the target's `sampling_defaults`):
    how often the draft would have guessed the next token, and how long its steps take, beside the target's with 1 to
    num_speculative + 1 rows. The one with the highest expected speed-up is chosen, if it is above 1.

    target, candidates: engines, or the paths or bytes of models. Files that are broken, unreadable or of an unknown
    kind are refused as any other, with the reason. Measured times depend on what else the machine does.

    Raises ConfigError for arguments out of range; for the target, what `load` raises, and UnsupportedModelError if it
    is an encoder.
    """
    if sampler is not None:
        check_type("sampler", sampler, SamplerConfig)
    limit = check_int("num_speculative", num_speculative, 1, 32)
    sources, prompts = checked_sources(candidates), checked_prompts(prompts)
    with opened(target) as file:
        check_generates(ModelSpec.read(file))
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
    """The engine, which stays open; or one for the probe alone, with the settings of another."""
    if isinstance(source, Engine):
        return nullcontext(source)
    with opened(source) as file:
        context_size = min(PROBE_CONTEXT, ModelSpec.read(file).context_length)
    settings = replace(like.config, overrides=None, rope=None, kv_budget=None) if like else EngineConfig()
    return Engine(replace(settings, model_path=source, context_size=context_size, tokenizer_path=None))


def measure(source: Source, target: Engine, target_bytes: int, probe: Probe) -> DraftCandidate:
    """One candidate; whatever is wrong with it is a reason."""
    try:
        check_fits(source, target.tokenizer, target_bytes)
        with loaded(source, target) as draft:
            acceptance, seconds = probe.acceptance(draft), step_seconds(draft, 1)
    except (OxiLlamaError, OSError, MemoryError) as error:
        return DraftCandidate(source, str(error) or type(error).__name__)
    speedup, k = probe.speedup(acceptance, seconds)
    return DraftCandidate(source, "", acceptance, seconds, speedup, k)


def check_fits(source: Source, tokenizer: Tokenizer, target_bytes: int) -> None:
    """What the file says, before its weights are read. Raises OxiLlamaError with the reason."""
    with opened(source) as file:
        check_generates(ModelSpec.read(file))
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
