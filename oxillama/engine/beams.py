"""Which beams go on, and which results are kept: numbers alone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from oxillama.checks import check_bool, check_float, check_int, suggests_fields
from oxillama.config import MAX_CONTEXT
from oxillama.engine.results import FinishReason

__all__ = ["BeamSearchConfig", "Candidate", "FoundBeams", "choose"]

MAX_BEAMS = 1024
# Up to here, no length that fits a context gives a power beyond the range of floats.
MAX_PENALTY = 32.0

Candidate = tuple[float, int, int]  # log-probability of all its tokens, number of the beam that it continues, token


@suggests_fields
@dataclass(frozen=True, slots=True)
class BeamSearchConfig:
    """How continuations are looked for. Every field is a keyword of `beam_search`.

    beam_width: beams that are followed, and results.
    max_new_tokens: tokens of a result at most; the context's end may come before.
    length_penalty: a result's score is the sum of its tokens' log-probabilities / length ** length_penalty. The length
        counts its tokens and that of the end, as in Hugging Face's transformers (`BeamHypotheses.add`). Above 0 it
        favours longer results, below 0 shorter ones.
    early_stopping: stop as soon as there are beam_width finished results; else when no beam can get better than those.

    Raises ConfigError, which names the field, its value and its range.
    """

    beam_width: int = 4
    max_new_tokens: int = 256
    length_penalty: float = 1.0
    early_stopping: bool = True

    def __post_init__(self) -> None:
        checked = {
            "beam_width": check_int("beam_width", self.beam_width, 1, MAX_BEAMS),
            "max_new_tokens": check_int("max_new_tokens", self.max_new_tokens, 1, MAX_CONTEXT),
            "length_penalty": check_float("length_penalty", self.length_penalty, -MAX_PENALTY, MAX_PENALTY),
            "early_stopping": check_bool("early_stopping", self.early_stopping),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def choose(
    candidates: Sequence[Candidate], width: int, end_ids: Collection[int]
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
        """By which results are sorted. `length`: tokens, with that of the end."""
        return float(logprob / max(1, length) ** self._config.length_penalty)

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
