"""Sampler chain: the stages that choose a token, in their order."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oxillama._util.checks import check_float, check_type, given_of
from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels.sampling import Candidates
from oxillama.sampler_config import idle_values
from oxillama.sampling.distribution import Distribution, certain, distribution_of
from oxillama.sampling.stages import CHOOSING, STAGES, Stage, default_stages, draw, grammar, greedy, masks
from oxillama.sampling.state import SamplerState

__all__ = ["SamplerChain", "make_chain"]

NO_CHOICE = "the sampler chain ended without choosing a token: end it with the stage draw or greedy"


# What keeps temperature 0 from the likeliest token where defaults have other values.
LIKELIEST: dict[str, Any] = idle_values("penalties", "dry", "mirostat")


class SamplerChain:
    """A list of stages that run in turn until one chooses a token. The order is data: give any list of your own.

    >>> SamplerChain(["penalties", "min_p", "temperature", "draw"], SamplerConfig(min_p=0.05))
    >>> SamplerChain.from_config(SamplerConfig(seed=1)).insert(my_stage, before="top_k")

    Stages are functions (candidates, config, state) or names of those in `sampling.stages`. Wherever a SamplerConfig
    can be given, a chain can.

    constrained: whether the settings say what a text must follow: a grammar, a schema, a pattern or choices.
    masked: whether they say which tokens may not come, by the text so far: the stage `masks` is there.
    greedy: whether a text without a grammar gets the likeliest token of each row, and no other stage comes before.
    """

    __slots__ = ("_unheld", "config", "constrained", "greedy", "masked", "stages")

    def __init__(self, stages: Sequence[Stage | str], config: SamplerConfig | None = None) -> None:
        """Raises ConfigError if there is no stage, for arguments of a wrong type, and without the stage `masks` for
        settings that need it."""
        if isinstance(stages, str | bytes) or not isinstance(stages, Iterable):
            raise ConfigError(f"stages must be a list of functions or names, not {type(stages).__name__}")
        found = [_stage(f"stages[{i}]", stage) for i, stage in enumerate(stages)]
        if not found:
            raise ConfigError("stages must hold at least one stage that chooses a token, not an empty list")
        settings = check_type("config", SamplerConfig() if config is None else config, SamplerConfig)
        if settings.masking is not None and masks not in found:
            raise ConfigError(f"{settings.masking} needs the stage masks: put it before the stages that cut")
        self._take(found, settings)

    def _take(self, stages: list[Stage], config: SamplerConfig) -> None:
        self.stages, self.config = tuple(stages), config
        self.constrained = config.constraint is not None
        self.masked = config.masking is not None
        # Of a text without a grammar. Where settings name a constraint, the stage says that its state is missing.
        unheld = stages if self.constrained else [stage for stage in stages if stage is not grammar]
        self._unheld = tuple(unheld)
        self.greedy = self._unheld[:1] == (greedy,)

    @classmethod
    def from_config(cls, config: SamplerConfig) -> "SamplerChain":
        """The default order, without the stages that `config` makes idle. Raises ConfigError for another type."""
        chain = object.__new__(cls)
        chain._take(default_stages(check_type("config", config, SamplerConfig)), config)
        return chain

    def insert(
        self, stage: Stage | str, *, before: Stage | str | None = None, after: Stage | str | None = None
    ) -> "SamplerChain":
        """A chain with one stage more. Raises ConfigError unless one neighbour is given and is in the chain."""
        if (before is None) == (after is None):
            raise ConfigError("give either before or after: a stage of the chain")
        at = self._find(before) if before is not None else self._find(after) + 1
        return SamplerChain([*self.stages[:at], stage, *self.stages[at:]], self.config)

    def without(self, stage: Stage | str) -> "SamplerChain":
        """A chain without a stage. Raises ConfigError if it is not there, or the only one."""
        at = self._find(stage)
        return SamplerChain([*self.stages[:at], *self.stages[at + 1 :]], self.config)

    def with_config(self, config: SamplerConfig) -> "SamplerChain":
        """Copy with the same stages and other settings."""
        return SamplerChain(self.stages, config)

    def _find(self, stage: object) -> int:
        wanted = _stage("stage", stage)
        if wanted not in self.stages:
            raise ConfigError(f"stage must be one of the chain's, {', '.join(map(_name, self.stages))}, not {stage!r}")
        return self.stages.index(wanted)

    def of_stages(self) -> "SamplerChain":
        """The chain without functions that are not ours, which may keep count of their calls; it draws in the end."""
        known = [stage for stage in self.stages if stage in STAGES.values()]
        if len(known) == len(self.stages):
            return self
        return SamplerChain(known if known and known[-1] in CHOOSING else [*known, draw], self.config)

    def choose(self, candidates: Candidates, state: SamplerState) -> int:
        """Runs the stages on loaded candidates and returns the token. Raises GenerateError if no stage chooses one."""
        for stage in self._unheld if state.grammar is None else self.stages:
            token = stage(candidates, self.config, state)
            if token is not None:
                return token
        raise GenerateError(NO_CHOICE)

    def distribution(self, candidates: Candidates, state: SamplerState) -> Distribution:
        """The distribution of `choose`, after the stages before `draw`; a certain token where another stage chooses.

        Numbers that stages take from the generator (`xtc`) are taken, that of `draw` is not. Raises what they raise.
        """
        for stage in self._unheld if state.grammar is None else self.stages:
            if stage is draw:
                return distribution_of(candidates)
            token = stage(candidates, self.config, state)
            if token is not None:
                return certain(token)
        raise GenerateError(NO_CHOICE)

    def __repr__(self) -> str:
        return f"<SamplerChain {' → '.join(map(_name, self.stages))}>"


def _stage(name: str, stage: object) -> Stage:
    if isinstance(stage, str) and stage in STAGES:
        return STAGES[stage]
    if not callable(stage):
        raise ConfigError(
            f"{name} must be a function (candidates, config, state) or one of {', '.join(STAGES)}, not {stage!r}"
        )
    return stage


def _name(stage: Stage) -> str:
    return getattr(stage, "__name__", repr(stage))


def make_chain(
    sampler: SamplerConfig | SamplerChain | None, options: Mapping[str, Any], defaults: SamplerChain
) -> SamplerChain:
    """The chain for `sampler` with the fields in `options` replaced. Raises ConfigError for their values.

    options: None stands for a field that isn't given. defaults: what counts without a sampler, but for its penalties
    and mirostat if `options` ask for temperature 0.
    """
    options = given_of(options)
    if sampler is not None:
        check_type("sampler", sampler, SamplerConfig, SamplerChain)
    if isinstance(sampler, SamplerChain):
        return sampler.with_config(replace(sampler.config, **options)) if options else sampler
    if sampler is None:
        if not options:
            return defaults
        sampler = defaults.config
        if asks_for_likeliest(options):
            options = {**LIKELIEST, **options}
    return SamplerChain.from_config(replace(sampler, **options) if options else sampler)


def asks_for_likeliest(options: Mapping[str, Any]) -> bool:
    """Whether the sampling options of a call ask for temperature 0. Raises ConfigError for what is no temperature."""
    return "temperature" in options and not check_float("temperature", options["temperature"], 0.0, math.inf)
