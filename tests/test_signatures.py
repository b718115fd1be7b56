"""Keywords that are declared once: what `help` shows of them, and that nothing declared is unknown to its check."""

import inspect
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

import oxillama as ox
from oxillama._util.signatures import takes
from oxillama.core.async_requests import AsyncBeamRounds, AsyncSession
from oxillama.core.batch import BatchSettings
from oxillama.core.beam_rounds import BeamKeywords, BeamRounds, BeamSearchOptions
from oxillama.core.beam_search import BeamOptions
from oxillama.core.embedding import choose_pooling
from oxillama.core.options import BatchOptions, RequestOptions, StreamOptions, TextOptions
from oxillama.core.session import Session, SessionOptions, session_options
from oxillama.snapshot.resume import ResumeOptions, resumed


class Rest(TypedDict, total=False):
    far: int


class Options(Rest, total=False):
    size: int
    names: list[str] | None
    other: str | None


@dataclass
class Checked:
    """Options, checked.

    size: of it.
    """

    size: int = 3
    names: tuple[str, ...] = ()


def test_keywords_are_spelt_out_with_the_defaults_of_their_check():
    @takes(Options, Checked, rest=Rest)
    def call(text: str, *, n: int = 1, **options: Any) -> None:
        """Calls."""

    found = inspect.signature(call).parameters
    assert list(found) == ["text", "n", "size", "names", "other", "options"]
    assert [found[name].default for name in ("size", "names", "other")] == [3, None, None]
    assert found["size"].annotation is int
    assert call.__doc__ == "Calls.\n\nOptions:\n\nsize: of it."


def test_without_a_rest_nothing_else_is_taken():
    @takes(Options, Checked)
    def call(**options: Any) -> None:
        """Calls."""

    assert list(inspect.signature(call).parameters) == ["far", "size", "names", "other"]


def test_annotations_are_shown_as_they_were_written():
    for call in (ox.Engine.session, ox.Engine.snapshot, ox.Engine.embed, ox.Engine.resume, ox.Engine.rerank):
        assert "ForwardRef" not in str(inspect.signature(call))


def test_what_is_shown_of_a_session_is_what_it_takes():
    assert "deadline" not in inspect.getdoc(ox.Engine.session)
    assert "cache_salt: only requests with the same one" in inspect.getdoc(ox.Engine.session)


def test_n_is_in_every_signature_that_takes_it():
    for name in ("generate", "stream", "chat", "infill", "batch"):
        assert inspect.signature(getattr(ox.Engine, name)).parameters["n"].default is None


@pytest.mark.parametrize(
    ("declared", "rest", "checked", "elsewhere"),
    [
        (StreamOptions, RequestOptions, TextOptions, {"sampler"}),  # it becomes the chain
        (BatchOptions, StreamOptions, BatchSettings, set()),
        (BeamSearchOptions, BeamKeywords, BeamOptions, set()),
        (SessionOptions, None, session_options, set()),
        (ResumeOptions, None, resumed, set()),
    ],
)
def test_every_declared_keyword_is_checked_under_its_name(declared, rest, checked, elsewhere):
    own = set(declared.__annotations__) - set(getattr(rest, "__annotations__", {}))
    assert own - elsewhere <= set(inspect.signature(checked).parameters)


def test_help_shows_what_options_mean():
    for call in (ox.Engine.generate, ox.Engine.stream, ox.AsyncEngine.generate, ox.AsyncEngine.stream):
        assert "ignore_eos: go on after end-of-generation tokens." in inspect.getdoc(call)
        assert inspect.signature(call).parameters["ignore_eos"].default is False
    assert inspect.signature(ox.Engine.batch).parameters["max_in_flight"].default == BatchSettings().max_in_flight
    assert inspect.signature(ox.Engine.embed).parameters["dtype"].default == "float32"
    assert "normalize: divide by the Euclidean length" in inspect.getdoc(ox.AsyncEngine.embed)
    assert "dtype" in inspect.signature(choose_pooling).parameters


def test_sync_and_async_calls_take_the_same_keywords():
    for name in public(ox.AsyncEngine, callable):
        sync, coroutine = (inspect.signature(getattr(kind, name)) for kind in (ox.Engine, ox.AsyncEngine))
        assert list(sync.parameters) == list(coroutine.parameters), name
        assert all(sync.parameters[p].default == coroutine.parameters[p].default for p in sync.parameters), name


def public(kind, fits):
    return [name for name in dir(kind) if not name.startswith("_") and fits(getattr(kind, name))]


# The calls of `Engine` that are none of `AsyncEngine`, and those that are no coroutines there, as its manual says.
MISSING = ["conversation"]
PLAIN = ["batch", "beam_rounds", "is_eos", "session", "stream"]


def test_async_engines_have_the_calls_of_engines():
    assert [n for n in public(ox.Engine, lambda _: True) if not hasattr(ox.AsyncEngine, n)] == MISSING
    assert public(ox.AsyncEngine, lambda value: not callable(value)) == public(ox.Engine, lambda v: not callable(v))
    plain = public(ox.AsyncEngine, lambda call: callable(call) and not inspect.iscoroutinefunction(call))
    assert plain == PLAIN
    manual = inspect.getdoc(ox.AsyncEngine)
    assert [name for name in MISSING + PLAIN if f"`{name}`" not in manual] == []


def test_async_handles_have_the_calls_of_handles():
    calls = public(Session, lambda _: True)
    assert [n for n in calls if not hasattr(AsyncSession, n)] == ["after_fork", "cancel"]  # a cancelled task does that
    for name in public(AsyncSession, callable):
        assert inspect.iscoroutinefunction(getattr(AsyncSession, name))
        sync, coroutine = (inspect.signature(getattr(kind, name)) for kind in (Session, AsyncSession))
        assert list(sync.parameters) == list(coroutine.parameters), name
    assert [n for n in public(BeamRounds, callable) if not hasattr(AsyncBeamRounds, n)] == ["close"]  # `aclose`
