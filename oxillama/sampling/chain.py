"""`SamplerChain`, the stages that a configuration asks for, and `Sampler`, the chain at work on one request."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling.stages import DEFAULT_ORDER, Stage
from oxillama.sampling.state import SamplerState

__all__ = ["Sampler", "SamplerChain"]


class SamplerChain:
    """A list of stages that run in turn until one chooses a token. The order is data: give any list of your own."""

    __slots__ = ("config", "stages")

    def __init__(self, stages: Sequence[Stage], config: SamplerConfig | None = None) -> None:
        """Raises ConfigError if there is no stage."""
        if not stages:
            raise ConfigError("stages must hold at least one stage that chooses a token, not an empty list")
        self.stages = tuple(stages)
        self.config = config if config is not None else SamplerConfig()

    @classmethod
    def from_config(cls, config: SamplerConfig) -> "SamplerChain":
        """The default order, without the stages that `config` makes idle."""
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
    ) -> None:
        """`prompt` starts the penalty window; samplers used in turn may share one `scratch`."""
        chain = config if isinstance(config, SamplerChain) else SamplerChain.from_config(config or SamplerConfig())
        self.chain = chain
        self.state = SamplerState.start(chain.config, prompt)
        self.scratch = scratch if scratch is not None else Candidates()

    @property
    def config(self) -> SamplerConfig:
        return self.chain.config

    def sample(self, logits: NDArray[np.float32]) -> int:
        """The next token from a row of logits, float32 [n_vocab], which is left as it is.

        Raises GenerateError if a logit is NaN or plus infinity, or all are minus infinity.
        """
        self.scratch.load(logits)
        return self.chain.choose(self.scratch, self.state)

    def accept(self, token: int) -> None:
        """Takes note that `token` follows, chosen by `sample` or by anyone."""
        self.state.window.push(token)

    def copy(self) -> "Sampler":
        """One that goes on independently from the same state."""
        twin = Sampler(self.chain)
        twin.state = self.state.copy()
        return twin
