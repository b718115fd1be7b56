"""Beam search round by round."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

from oxillama._util.checks import check_int, check_keywords, check_type, given_of
from oxillama._util.pickling import stays_here
from oxillama.config import MAX_CONTEXT, SamplerConfig, field_names
from oxillama.core.beam_search import BeamOptions, BeamSearch, BeamSearchConfig
from oxillama.core.draft_options import DRAFT_FIELDS
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import SERVING_FIELDS, Prompt, ServingOptions
from oxillama.core.prompts import read_prompt
from oxillama.core.request import Bell, SnapshotProtocol
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import BeamHypothesis, CancelToken
from oxillama.errors import ConfigError
from oxillama.keywords import ServingKeywords, ShapingOptions
from oxillama.sampler_config import SHAPING
from oxillama.sampling import SamplerChain

__all__ = [
    "BeamKeywords",
    "BeamRounds",
    "BeamSearchOptions",
    "start_search",
]

# Options of one text, with which a search of the likeliest has no meaning.
TEXT_FIELDS = ("echo", "stopping_criteria", "include_stop")
_CONFIG = field_names(BeamSearchConfig)
PLAIN = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)


class BeamKeywords(ShapingOptions, ServingKeywords, total=False):
    """Keywords of `beam_search` that are fields of `BeamSearchConfig`, `SamplerConfig` and `ServingOptions`."""

    beam_width: int
    max_new_tokens: int
    max_tokens: int
    length_penalty: float
    early_stopping: bool


class BeamSearchOptions(BeamKeywords, total=False):
    """All keywords of `beam_search`; `BeamOptions` says what they mean."""

    ignore_eos: bool
    stop_token_ids: Iterable[int]
    cancel_token: CancelToken | None


class BeamRounds(Iterator[list[BeamHypothesis]]):
    """The beams that are followed after each round, the best first; the last round has none, and `results` tells.

    Their `finish_reason` is None, and their score what they would have if they ended here. It begins with the first
    round that is asked for. Leaving early (`close`, the end of a `with` block, or dropping it) ends the search.
    """

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on")

    def __init__(
        self, core: EngineCore, search: BeamSearch, cancel_token: CancelToken | None, snapshots: SnapshotProtocol
    ) -> None:
        self._core = core
        self._search = search
        self._cancel_token = cancel_token
        self._snapshots = snapshots
        self._begun = not search.outbox.n_open  # one that was saved after its end has nothing to begin
        self._left = False
        self._n_seen = search.n_rounds

    def __next__(self) -> list[BeamHypothesis]:
        search = self._search
        self._drive(lambda: search.n_rounds > self._n_seen)
        if search.outbox.error is not None:
            raise search.outbox.error
        if self._left or not search.outbox.n_open:
            raise StopIteration
        self._n_seen = search.n_rounds
        return self._core.change(search.followed)

    def results(self) -> list[BeamHypothesis]:
        """Hypotheses found, when no more is to be done: `Engine.beam_search` returns it, and raises its errors."""
        self._drive(lambda: False)
        return self._search.results()

    def _drive(self, enough: Callable[[], bool]) -> None:
        """Computes until `enough()` or the end; ended by its cancel token, or by an exception, it is cancelled."""
        core, search, outbox = self._core, self._search, self._search.outbox
        token = self._cancel_token

        def cancelled() -> bool:
            return token is not None and token.cancelled

        try:
            if not self._begun:
                self._begun = True
                self._ticket = core.submit(search.beams)
            core.drive(lambda: enough() or not outbox.n_open or cancelled())
            if cancelled():
                core.cancel(search.beams)
                core.drive(lambda: not outbox.n_open)
        except BaseException:
            self.close()
            raise

    def snapshot(self, path: str | os.PathLike[str] | None = None, *, compress: bool = False) -> bytes | None:
        """Saves the search as it is now, in the middle of a round too: to a file, or as bytes if there is no path.

        `Engine.resume` gives another one that goes on from there, to the same results. compress: with zstd.
        Raises SnapshotError and its children, ConfigError, EngineClosedError, and the error of a search that failed.
        """
        return self._snapshots.save_search(self._search, path, compress=compress)

    def snapshot_bytes(self, *, compress: bool = False) -> bytes:
        """`snapshot` without a path."""
        return cast(bytes, self.snapshot(compress=compress))

    def close(self) -> None:
        """Ends the search: unfinished beams are results too, with the reason "cancelled"."""
        self._begun = self._left = True
        self._core.cancel(self._search.beams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def start_search(
    core: EngineCore,
    factory: RequestFactory,
    prompt: Prompt,
    config: BeamSearchConfig | None,
    options: Mapping[str, Any],
    bell: Bell | None = None,
) -> BeamSearch:
    """The search that a call asks for. Raises what `beam_search` raises for wrong arguments."""
    core.check_generates()
    one = read_prompt("prompt", prompt, "beam_search() takes")
    check_beam_options(options)
    options = _renamed(given_of(options))
    chosen = check_type("config", BeamSearchConfig() if config is None else config, BeamSearchConfig)
    found = BeamOptions(
        replace(chosen, **_those(options, _CONFIG)),
        SamplerChain.from_config(replace(PLAIN, **_those(options, SHAPING))),
        ServingOptions(**_those(options, SERVING_FIELDS)),
        **{name: value for name, value in options.items() if name not in (*_CONFIG, *SHAPING, *SERVING_FIELDS)},
    )
    n = found.chain.config.min_tokens
    if n > found.config.max_new_tokens:
        raise ConfigError(f"min_tokens must be at most max_new_tokens, {found.config.max_new_tokens}, not {n}")
    return BeamSearch(core, factory, factory.ids("prompt", one), found, bell)


def check_beam_options(options: Iterable[str]) -> None:
    """Raises TypeError for keywords that `beam_search` doesn't have, ConfigError for those of one text alone."""
    for name in options:
        if name in TEXT_FIELDS:
            raise ConfigError(f"{name} is not for beam_search(), which follows several texts and ends with the best")
        if name in DRAFT_FIELDS:
            raise ConfigError(f"{name} is not for beam_search(), which has several texts instead of one to draft for")
    check_keywords("beam_search", options, ("config", *BeamSearchOptions.__annotations__))


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    """The options with `max_tokens`, as other calls name it, under its name here. Raises ConfigError for both names."""
    if "max_tokens" not in options:
        return options
    if "max_new_tokens" in options:
        raise ConfigError("max_tokens and max_new_tokens are one option: give one of them")
    n = check_int("max_tokens", options["max_tokens"], 1, MAX_CONTEXT)
    return {name: value for name, value in options.items() if name != "max_tokens"} | {"max_new_tokens": n}


def _those(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The options of these names."""
    return {name: options[name] for name in names if name in options}
