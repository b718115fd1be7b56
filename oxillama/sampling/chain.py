"""`SamplerChain`, the stages that a configuration asks for, and `Sampler`, the chain at work on one request."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_int, check_type
from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling.grammar import GrammarState
from oxillama.sampling.stages import DEFAULT_ORDER, Stage
from oxillama.sampling.state import SamplerState

__all__ = ["Sampler", "SamplerChain"]

# Ids are 32-bit integers in the files.
MAX_TOKEN = (1 << 31) - 1


class SamplerChain:
    """A list of stages that run in turn until one chooses a token. The order is data: give any list of your own."""

    __slots__ = ("config", "stages")

    def __init__(self, stages: Sequence[Stage], config: SamplerConfig | None = None) -> None:
        """Raises ConfigError if there is no stage, or for arguments of a wrong type."""
        if isinstance(stages, str | bytes) or not isinstance(stages, Iterable):
            raise ConfigError(f"stages must be a list of functions, not {type(stages).__name__}")
        self.stages = tuple(stages)
        if not self.stages:
            raise ConfigError("stages must hold at least one stage that chooses a token, not an empty list")
        for i, stage in enumerate(self.stages):
            if not callable(stage):
                raise ConfigError(f"stages[{i}] must be a function (candidates, config, state), not {stage!r}")
        self.config = check_type("config", SamplerConfig() if config is None else config, SamplerConfig)

    @classmethod
    def from_config(cls, config: SamplerConfig) -> "SamplerChain":
        """The default order, without the stages that `config` makes idle. Raises ConfigError for another type."""
        check_type("config", config, SamplerConfig)
        return cls([stage for stage, needed in DEFAULT_ORDER if needed(config)], config)

    def choose(self, candidates: Candidates, state: SamplerState) -> int:
        """Runs the stages on loaded candidates and returns the token. Raises GenerateError if no stage chooses one."""
        for stage in self.stages:
            token = stage(candidates, self.config, state)
            if token is not None:
                return token
        raise GenerateError("the sampler chain ended without choosing a token: end it with the stage draw or greedy")


class Sampler:
    """Chooses the tokens of one request, one after another; holds the request's generator and penalty window."""

    __slots__ = ("chain", "scratch", "state")

    def __init__(
        self,
        config: SamplerConfig | SamplerChain | None = None,
        *,
        prompt: Iterable[int] = (),
        scratch: Candidates | None = None,
        grammar: GrammarState | None = None,
    ) -> None:
        """`prompt` starts the penalty window; samplers used in turn may share one `scratch`.

        `grammar`: what the text must follow, at its beginning; it is advanced by `accept`.

        Raises ConfigError for arguments of a wrong type and for token ids that are negative.
        """
        config = check_type("config", SamplerConfig() if config is None else config, SamplerConfig, SamplerChain)
        self.chain = config if isinstance(config, SamplerChain) else SamplerChain.from_config(config)
        if isinstance(prompt, str | bytes) or not isinstance(prompt, Iterable):
            raise ConfigError(f"prompt must be token ids, not {type(prompt).__name__}")
        ids = [check_int(f"prompt[{i}]", token, 0, MAX_TOKEN) for i, token in enumerate(prompt)]
        self.state = SamplerState.start(self.chain.config, ids)
        if grammar is not None:
            self.state.grammar = check_type("grammar", grammar, GrammarState)
        self.scratch = check_type("scratch", Candidates() if scratch is None else scratch, Candidates)

    @property
    def config(self) -> SamplerConfig:
        return self.chain.config

    def sample(self, logits: NDArray[np.float32]) -> int:
        """The next token from a row of logits, float32 [n_vocab], which is left as it is.

        Raises ConfigError for anything but a float32 array of one dimension, GenerateError if a logit is NaN or plus
        infinity, or all are minus infinity.
        """
        if not isinstance(logits, np.ndarray) or logits.dtype != np.float32 or logits.ndim != 1:
            raise ConfigError(f"logits must be a float32 array of one dimension, not {_described(logits)}")
        self.scratch.load(np.ascontiguousarray(logits))
        return self.chain.choose(self.scratch, self.state)

    def accept(self, token: int) -> None:
        """Takes note that `token` follows, chosen by `sample` or by anyone.

        Raises ConfigError for what is no id, GrammarError for a token that the grammar doesn't allow.
        """
        token = check_int("token", token, 0, MAX_TOKEN)
        if self.state.grammar is not None:
            self.state.grammar.advance(token)
        self.state.window.push(token)

    def copy(self) -> "Sampler":
        """One that goes on independently from the same state."""
        twin = Sampler(self.chain)
        twin.state = self.state.copy()
        return twin


def _described(logits: object) -> str:
    if isinstance(logits, np.ndarray):
        return f"{logits.dtype} of shape {logits.shape}"
    return type(logits).__name__
