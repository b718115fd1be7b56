"""Sampler of one request: a chain and its state."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int, check_type
from oxillama._util.pickling import stays_here
from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.grammar import GrammarState
from oxillama.kernels.sampling import Candidates, described, likeliest
from oxillama.sampling.chain import SamplerChain
from oxillama.sampling.distribution import Distribution
from oxillama.sampling.dry import TokenBytes
from oxillama.sampling.masks import Spelling, TokenMasks
from oxillama.sampling.state import SamplerState, check_ids

__all__ = ["LogitsProcessor", "Sampler", "check_processors"]

# (token ids so far, logits): changes the logits, float32 [n_vocab], in place.
LogitsProcessor = Callable[[list[int], NDArray[np.float32]], object]


def check_processors(name: str, processors: Any) -> tuple[LogitsProcessor, ...]:
    """`processors` as a tuple, of None an empty one. Raises ConfigError unless all can be called."""
    if processors is None:
        return ()
    if isinstance(processors, str | bytes | Mapping) or not isinstance(processors, Iterable):
        raise ConfigError(f"{name} must be a list of functions, not {type(processors).__name__}")
    found = tuple(processors)
    for i, processor in enumerate(found):
        if not callable(processor):
            raise ConfigError(f"{name}[{i}] must be a function (ids, logits), not {processor!r}")
    return found


class Sampler:
    """Chooses the tokens of one request, one after another: `sample` draws one, `accept` says which one follows.

    memory: all that it remembers. A copy, a rewind and a saved state go back to the same point exactly, the generator
    and mirostat's mu included.
    """

    __slots__ = ("chain", "memory", "processors", "scratch")
    __reduce_ex__ = stays_here("send its state(), with which Sampler.from_state goes on, or copy() it here")

    def __init__(
        self,
        config: SamplerConfig | SamplerChain | None = None,
        *,
        prompt: Iterable[int] = (),
        scratch: Candidates | None = None,
        grammar: GrammarState | None = None,
        token_bytes: TokenBytes | None = None,
        processors: Iterable[LogitsProcessor] | None = None,
        spelling: Spelling | None = None,
        end_ids: Iterable[int] | None = None,
    ) -> None:
        """`prompt` comes before the first token, for penalties, DRY and processors.

        config: None for `SamplerConfig()`, independent of the model: `engine.sampling_defaults` has a file's
        recommendations. scratch: samplers used in turn may share one. grammar: state at the start of the text; `accept`
        advances it. token_bytes: returns the bytes of a token, needed for DRY with breakers that are strings.
        processors: run on a copy of each row before the first stage. spelling: returns the tokens of a text, needed
        for `bad_words` that are strings. end_ids: tokens that end a text, needed for `min_tokens`.

        Raises ConfigError for arguments of a wrong type and for token ids that are negative.
        """
        config = check_type("config", SamplerConfig() if config is None else config, SamplerConfig, SamplerChain)
        self.chain = config if isinstance(config, SamplerChain) else SamplerChain.from_config(config)
        self.memory = SamplerState(self.chain.config, check_ids("prompt", prompt), token_bytes)
        if grammar is not None:
            self.memory.grammar = check_type("grammar", grammar, GrammarState)
        if self.chain.masked:
            self.memory.masks = TokenMasks(self.chain.config, spelling=spelling, end_ids=end_ids)
        self.scratch = check_type("scratch", Candidates() if scratch is None else scratch, Candidates)
        self.processors = check_processors("logits_processors", processors)

    @classmethod
    def of(
        cls, chain: SamplerChain, memory: SamplerState, scratch: Candidates, processors: tuple[LogitsProcessor, ...]
    ) -> "Sampler":
        """A sampler of parts that were checked when they were made."""
        made = object.__new__(cls)
        made.chain, made.memory, made.scratch, made.processors = chain, memory, scratch, processors
        return made

    @property
    def config(self) -> SamplerConfig:
        return self.chain.config

    def sample(self, logits: NDArray[np.float32]) -> int:
        """The next token from a row of logits, float32 [n_vocab], which is left as it is.

        Raises ConfigError for anything but a float32 array of one dimension, GenerateError if a logit is NaN or plus
        infinity, or all are minus infinity; and a processor's own errors.
        """
        if self.chain.greedy and not self.processors and self.memory.grammar is None:
            return likeliest(logits)  # as the stage `greedy` does of a copy
        self.scratch.load(logits)
        if self.processors:
            self._process(np.array(logits))
        return self.chain.choose(self.scratch, self.memory)

    def distribution(self, logits: NDArray[np.float32]) -> Distribution:
        """The distribution of `sample`; see `SamplerChain.distribution`. Raises what `sample` raises.

        A draw from it and `accept` of the token are a `sample`. With mirostat, which depends on its own draw, and with
        the user's own stages that choose, it has one token with probability 1.
        """
        self.scratch.load(logits)
        if self.processors:
            self._process(np.array(logits))
        return self.chain.distribution(self.scratch, self.memory)

    def _process(self, row: NDArray[np.float32]) -> None:
        ids = self.memory.history.tokens.tolist()
        for i, processor in enumerate(self.processors):
            # Views and lists of its own: the processor may change their shapes, and keep them.
            result = processor(ids[:], row[:])
            if result is not None:
                raise ConfigError(
                    f"logits_processors[{i}] must change the logits in place and return None, not {described(result)}"
                )
            bad = np.flatnonzero(~(row < np.inf))
            if len(bad):
                raise GenerateError(
                    f"logits_processors[{i}] made the logit of token {bad[0]} {row[bad[0]]}: it must be below infinity"
                )
            if row.max() == -np.inf:
                raise GenerateError(f"logits_processors[{i}] left no token: all logits are minus infinity")
        self.scratch.load(row)

    def accept(self, token: int) -> None:
        """Appends a token, chosen by `sample` or in another way.

        Raises ConfigError for an invalid id, GrammarError for a token that the grammar doesn't allow.
        """
        self.memory.push(token)

    def rewind(self, n: int) -> None:
        """Takes back the last n tokens, and the draws since then. Raises ConfigError if fewer were accepted."""
        self.memory.rewind(check_int("n", n, 0, self.memory.n_accepted))

    def restart(self, prompt: Iterable[int] = (), *, reseed: bool = False) -> None:
        """Returns to the state before the first token, with another prompt. Raises ConfigError for negative token ids.

        reseed: without a seed in the settings, draws from here on with a new random seed.
        """
        seed = int.from_bytes(os.urandom(8), "little") if reseed and self.config.seed is None else None
        self.memory.restart(self.config, check_ids("prompt", prompt), seed)

    def __copy__(self) -> "Sampler":
        return self.copy()

    def copy(self) -> "Sampler":
        """An independent sampler with the same state."""
        return Sampler.of(self.chain, self.memory.copy(), Candidates(), self.processors)

    def shadow(self, scratch: Candidates) -> "Sampler":
        """A sampler that shares this one's state, and draws by the same stages, but calls no user function.

        For drafts of this sampler's draws, which are taken back by `rewind`: a processor or stage of the user's own
        that counts its calls must not see them.
        """
        return Sampler.of(self.chain.of_stages(), self.memory, scratch, ())

    def state(self) -> dict[str, Any]:
        """The state as lists and numbers, for `from_state`."""
        return self.memory.data()

    @classmethod
    def from_state(
        cls, data: Mapping[str, Any], config: SamplerConfig | SamplerChain | None = None, **options: Any
    ) -> "Sampler":
        """The sampler of the data of `state`, with the settings and options that it was made with, except the prompt.

        Raises ConfigError for damaged data, GrammarError if the tokens don't fit the grammar.
        """
        check_type("data", data, Mapping)
        tokens = check_ids("tokens of the saved state", data.get("tokens"))
        n_prompt = check_int("n_prompt of the saved state", data.get("n_prompt"), 0, len(tokens))
        self = cls(config, prompt=tokens[:n_prompt], **options)
        self.memory.restore(data)
        return self
