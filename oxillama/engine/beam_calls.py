"""`beam_search`: what a caller gives and gets."""

from __future__ import annotations

from typing import Unpack

from oxillama.core.beam_rounds import BeamKeywords, BeamRounds, start_search
from oxillama.core.beam_search import BeamSearchConfig
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import Prompt
from oxillama.core.request import SnapshotProtocol
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import BeamHypothesis, CancelToken

__all__ = ["BeamMethods"]


class BeamMethods:
    """The engine's method for beam search."""

    _core: EngineCore
    _maker: RequestFactory
    _snapshots: SnapshotProtocol

    def beam_search(
        self,
        prompt: Prompt,
        config: BeamSearchConfig | None = None,
        *,
        ignore_eos: bool = False,
        cancel_token: CancelToken | None = None,
        **options: Unpack[BeamKeywords],
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt that are found with several beams, by falling score.

        config, options: fields of `BeamSearchConfig`, singly or together. Also what says which tokens may come:
            `grammar`, `json_schema` (with `schema_mode`), `regex`, `choices` and `banned_tokens` leave
            log-probabilities as they are, and `logit_bias` adds to them; and `priority`, `deadline`, `deadline_from`,
            `cache_prompt`, `cache_salt`.
            Nothing is drawn at random: other fields of `SamplerConfig` have no place here.
        ignore_eos: end-of-generation tokens are tokens like others.
        cancel_token: lets another thread stop it; what there is by then is returned, unfinished beams included.

        Results are at most beam_width; fewer if no more are possible. One beam with early_stopping gives what greedy
        generation gives. Of equal candidates the one of the better beam goes first, then the lower token. It counts as
        beam_width requests, which take part in the same steps as others; each result depends on nothing else.

        Raises ConfigError (also for a beam_width above the number of tokens), TypeError for unknown options,
        TokenizerError, ContextOverflowError, KvCacheFullError (the beams together could never fit the cache),
        QueueFullError, GrammarError (also if no token can follow it), GenerateError, EngineClosedError.
        """
        rounds = self.beam_rounds(prompt, config, ignore_eos=ignore_eos, cancel_token=cancel_token, **options)
        return rounds.results()

    def beam_rounds(
        self,
        prompt: Prompt,
        config: BeamSearchConfig | None = None,
        *,
        ignore_eos: bool = False,
        cancel_token: CancelToken | None = None,
        **options: Unpack[BeamKeywords],
    ) -> BeamRounds:
        """`beam_search` round by round, which can be saved meanwhile: an iterator over the beams that are followed.

        Options and errors are those of `beam_search`; `results` of what it gives has the same results.
        """
        search = start_search(self._core, self._maker, prompt, config, ignore_eos, cancel_token, options)
        return BeamRounds(self._core, search, cancel_token, self._snapshots)
