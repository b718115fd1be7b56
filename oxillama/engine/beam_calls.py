"""`beam_search`: what a caller gives and gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from oxillama._util.checks import check_bool, check_keywords, check_type
from oxillama.config import SamplerConfig, field_names
from oxillama.core.beam_rounds import BeamRounds
from oxillama.core.beam_search import BeamOptions, BeamSearch, BeamSearchConfig
from oxillama.core.draft_options import DRAFT_FIELDS
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import DeadlineFrom, Prompt, split_options
from oxillama.core.prompts import read_prompt
from oxillama.core.request import Bell
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import BeamHypothesis, CancelToken
from oxillama.errors import ConfigError
from oxillama.sampler_config import CONSTRAINTS, JsonSchema, SchemaMode
from oxillama.sampling import SamplerChain

if TYPE_CHECKING:
    from oxillama.snapshot.capture import SnapshotWriter

__all__ = ["BeamKeywords", "BeamMethods", "start_search"]

# Fields of SamplerConfig that say what may come, and not how to draw.
SHAPING = (*CONSTRAINTS, "schema_mode", "logit_bias", "banned_tokens")
# Options of one text, with which a search of the likeliest has no meaning.
TEXT_FIELDS = ("echo", "stopping_criteria")
PLAIN = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)


class BeamKeywords(TypedDict, total=False):
    """The keywords of `beam_search` beside those in its signature."""

    beam_width: int
    max_new_tokens: int
    length_penalty: float
    early_stopping: bool
    grammar: str | None
    json_schema: JsonSchema | None
    schema_mode: SchemaMode
    regex: str | None
    choices: SequenceOf[str] | None
    logit_bias: Mapping[int, float] | None
    banned_tokens: Iterable[int]
    priority: int
    deadline: float | None
    deadline_from: DeadlineFrom | None
    cache_prompt: bool
    cache_salt: str | None
    lora: Any


class BeamMethods:
    """The engine's method for beam search."""

    _core: EngineCore
    _maker: RequestFactory
    _snapshots: SnapshotWriter

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


def start_search(
    core: EngineCore,
    maker: RequestFactory,
    prompt: Prompt,
    config: BeamSearchConfig | None,
    ignore_eos: bool,
    cancel_token: CancelToken | None,
    options: Mapping[str, Any],
    bell: Bell | None = None,
) -> BeamSearch:
    """The search that a call asks for. Raises what `beam_search` raises for wrong arguments."""
    core.check_generates()
    one = read_prompt("prompt", prompt, "beam_search() takes")
    check_options(options)
    fields = dict(options)
    found = BeamOptions(
        replace(
            check_type("config", BeamSearchConfig() if config is None else config, BeamSearchConfig),
            **_taken(fields, field_names(BeamSearchConfig)),
        ),
        SamplerChain.from_config(replace(PLAIN, **_taken(fields, SHAPING))),
        split_options(fields),
        check_bool("ignore_eos", ignore_eos),
        cancel_token if cancel_token is None else check_type("cancel_token", cancel_token, CancelToken),
    )
    return BeamSearch(core, maker, maker.ids("prompt", one), found, bell)


def check_options(options: Iterable[str]) -> None:
    """Raises TypeError for keywords that `beam_search` doesn't have, ConfigError for those of one text alone."""
    for name in options:
        if name in TEXT_FIELDS:
            raise ConfigError(f"{name} is not for beam_search(), which follows several texts and ends with the best")
        if name in DRAFT_FIELDS:
            raise ConfigError(f"{name} is not for beam_search(), which has several texts instead of one to guess")
    check_keywords("beam_search", options, ("config", "ignore_eos", "cancel_token", *BeamKeywords.__annotations__))


def _taken(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Those of these names, which are taken out."""
    return {name: fields.pop(name) for name in names if name in fields}
