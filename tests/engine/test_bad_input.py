"""Bad arguments: a typed error that names argument, value and range, before anything is computed."""

import inspect
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import oxillama as ox
from oxillama.config import EngineConfig, SamplerConfig
from oxillama.core.options import StreamOptions, check_options
from oxillama.engine import Engine
from oxillama.errors import ConfigError, ContextOverflowError, KvCacheFullError, OxiLlamaError, TokenizerError
from tests.fakes import BOS, N_VOCAB, assert_idle, make_engine, runner_of

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def engine():
    return make_engine(context_size=64)


@pytest.mark.parametrize(
    ("ids", "place"),
    [
        ([3, -1], r"prompt\[1\].* -1"),
        ([N_VOCAB], rf"prompt\[0\].*from 0 to {N_VOCAB - 1}, not {N_VOCAB}"),
        ([3, 4, True], r"prompt\[2\].*True"),
        ([3, 1.0], r"prompt\[1\].*1\.0"),
        ([1 << 70], r"prompt\[0\]"),
        ([3, None], r"prompt\[1\].*None"),
        (np.array([3.0, 4.0]), r"prompt\[0\].*3\.0"),
        ([[3], [4, "a"]], r"prompt\[1\]\[1\].*'a'"),
        (["a", [5, -2]], r"prompt\[1\]\[1\].*-2"),
        ([3, "a"], r"prompt\[1\].*'a'"),
        ([[3], 4], r"prompt\[1\] must be token ids, not int"),
        ([[3], [[4]]], r"prompt\[1\]\[0\]"),
    ],
)
def test_bad_token_ids(engine, ids, place):
    with pytest.raises(TokenizerError, match=place) as e:
        engine.generate(ids)
    assert isinstance(e.value, ValueError)


@pytest.mark.parametrize("prompt", [None, 5, b"abc", {"a": 1}, iter("ab"), 1.5])
def test_no_prompt_at_all(engine, prompt):
    with pytest.raises(ConfigError, match="prompt must be text"):
        engine.generate(prompt)


@pytest.mark.parametrize("prompt", [[], (), np.array([], int), ["a", []]])
def test_empty_prompt(engine, prompt):
    with pytest.raises(ConfigError, match="is empty"):
        engine.generate(prompt)


def test_empty_text(engine):
    for use in (engine.generate, engine.stream):
        with pytest.raises(ConfigError, match=r"^prompt is empty.*\[bos_id\]"):
            use("")
    with pytest.raises(ConfigError, match=r"^prompt\[1\] is empty"):
        engine.generate(["a", ""])
    with pytest.raises(ConfigError, match=r"^input is empty"):
        engine.embed("")
    with pytest.raises(ConfigError, match=r"^input\[0\] is empty"):
        engine.embed([""])
    assert engine.generate([BOS], max_tokens=2, ignore_eos=True).prompt_tokens == 1


def test_text_without_a_token():
    engine = make_engine()
    engine.tokenizer.encode = lambda text: []
    with pytest.raises(ConfigError, match="prompt is empty"):
        engine.generate(" ")


@pytest.mark.parametrize("given", [None, [], 5, b"ab"])
def test_embed_names_its_own_argument(engine, given):
    with pytest.raises(ConfigError, match=r"^input "):
        engine.embed(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "8"),
        ("temperature", math.nan),
        ("temperature", -1),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 7),
        ("top_k", -1),
        ("repetition_penalty", 0),
        ("repetition_penalty_window", -3),
        ("seed", -1),
        ("seed", 1 << 64),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", 5),
        ("stop", b"a"),
        ("ignore_eos", 1),
        ("sampler", {"temperature": 1}),
        ("cancel_token", object()),
        ("on_token", "print"),
    ],
)
def test_bad_option(engine, name, value):
    with pytest.raises(ConfigError, match=rf"^{name} must "):
        engine.generate("ab", **{name: value})
    if name != "on_token":
        with pytest.raises(ConfigError, match=rf"^{name} must "):
            engine.stream("ab", **{name: value})


@pytest.mark.parametrize(
    ("call", "name", "meant"),
    [
        ("generate", "temprature", "temperature"),
        ("generate", "max_token", "max_tokens"),
        ("generate", "max_new_tokens", "max_tokens"),
        ("generate", "on_tokens", "on_token"),
        ("generate", "stop_sequences", "stop"),
        ("generate", "repeat_penalty", "repetition_penalty"),
        ("stream", "prioriti", "priority"),
        ("stream", "temp", "temperature"),
        ("batch", "in_flight", "max_in_flight"),
        ("batch", "drafts", "draft"),
        ("chat", "tool_choise", "tool_choice"),
        ("chat", "max_token", "max_tokens"),
        ("beam_search", "num_beam_width", "beam_width"),
        ("beam_search", "regexp", "regex"),
        ("embed", "poolin", "pooling"),
        ("embed", "normalise", "normalize"),
        ("chat", "response_format", "json_schema"),
        ("chat", "functions", "tools"),
        ("generate", "num_predict", "max_tokens"),
        ("generate", "timeout", "deadline"),
        ("batch", "guided_json", "json_schema"),
        ("chat", "repeat_last_n", "repetition_penalty_window"),
    ],
)
def test_unknown_option_names_the_nearest_known_one(engine, call, name, meant):
    given = HI if call == "chat" else "ab"
    expected = rf"^{call}\(\) got an unexpected keyword argument '{name}'; did you mean '{meant}'\?$"
    with pytest.raises(TypeError, match=expected):
        getattr(engine, call)([given] if call == "batch" else given, **{name: 1})


def test_option_unlike_any_known_one_lists_them_all(engine):
    names = ["max_tokens", "on_token", "n", "temperature", "priority", "draft", "logprobs"]
    with pytest.raises(TypeError, match=r"^generate\(\) got .* 'zzz'; it takes ") as error:
        engine.generate("ab", zzz=1)
    assert set(names) < set(str(error.value).partition("; it takes ")[2].split(", "))
    with pytest.raises(TypeError, match=r"^beam_search\(\) got .* 'temperature'; it takes "):
        engine.beam_search("ab", temperature=0.5)


@pytest.mark.parametrize(
    ("name", "method"), [("stream", "stream()"), ("suffix", "infill(prefix, suffix)"), ("num_beams", "beam_search()")]
)
def test_option_of_elsewhere_that_is_a_method_here(engine, name, method):
    with pytest.raises(TypeError, match=re.escape(f"'{name}'; there is {method} for that")):
        engine.generate("ab", **{name: True})


def test_every_keyword_of_a_signature_is_known():
    for call in ("generate", "stream", "chat", "batch"):
        parameters = inspect.signature(getattr(Engine, call)).parameters.values()
        named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        check_options(call, named | set(StreamOptions.__annotations__))


@pytest.mark.parametrize(
    ("settings", "name", "meant"),
    [
        (SamplerConfig, "temprature", "temperature"),
        (SamplerConfig, "penalty_window", "repetition_penalty_window"),
        (EngineConfig, "n_threads", "num_threads"),
        (EngineConfig, "n_ctx", "context_size"),
        (ox.RopeConfig, "scale", "scaling"),
        (ox.OffloadPolicy, "budgets", "budget"),
        (ox.BeamSearchConfig, "width", "beam_width"),
    ],
)
def test_unknown_field_names_the_nearest_known_one(settings, name, meant):
    expected = rf"^{settings.__name__}\(\) got an unexpected keyword argument '{name}'; did you mean '{meant}'\?$"
    with pytest.raises(TypeError, match=expected):
        settings(**{name: 1})
    with pytest.raises(TypeError, match=expected):
        replace(settings(), **{name: 1})
    assert inspect.signature(settings).parameters.keys() == settings.__dataclass_fields__.keys()


def test_stream_checks_when_called_and_not_when_read(engine):
    with pytest.raises(ContextOverflowError):
        engine.stream([3] * 64)
    with pytest.raises(KvCacheFullError):
        next(make_engine(n_blocks=1).stream([3] * 16, max_tokens=2))


def test_prompt_that_leaves_no_room(engine):
    for n in (64, 65, 1000):
        with pytest.raises(ContextOverflowError, match=rf"prompt has {n} tokens and context_size is 64.*larger") as e:
            engine.generate([3] * n)
        assert isinstance(e.value, ValueError)
    with pytest.raises(ContextOverflowError, match=r"prompt\[1\] has 64"):
        engine.generate(["a", [3] * 64])


def test_request_that_can_never_fit_the_cache():
    engine = make_engine(n_blocks=2)
    with pytest.raises(KvCacheFullError, match="need 3 KV blocks of 16 tokens, and there are 2 in all"):
        engine.generate([3] * 10, max_tokens=24)
    with pytest.raises(KvCacheFullError):
        engine.generate([3] * 33)
    assert engine.generate([3] * 10, max_tokens=23, ignore_eos=True).finish_reason == "length"
    assert_idle(engine)


def test_one_bad_prompt_of_a_list_starts_none(engine):
    runner_of(engine).steps.clear()
    with pytest.raises(OxiLlamaError):
        engine.generate(["a", "b", [3] * 64], max_tokens=3)
    assert runner_of(engine).steps == []
    assert_idle(engine)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hi",
        None,
        [5],
        ["hi"],
        [{"content": "hi"}],
        [{"role": 1}],
        {"role": "user"},
        [{"role": "user"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": []}],
    ],
)
def test_bad_messages(engine, messages):
    for call in (engine.chat, engine.chat_tokens):
        with pytest.raises(ox.MessageError, match="messages") as error:
            call(messages)
        assert isinstance(error.value, ConfigError)
        assert isinstance(error.value, ox.ChatTemplateError)


def test_unknown_engine_option():
    for call in (Engine, ox.load, ox.SpeculativeEngine, partial(ox.from_hub, "a/b", "c.gguf")):
        with pytest.raises(TypeError, match=r"\(\) got .* 'n_threads'; did you mean 'num_threads'\?$"):
            call(n_threads=2)
    with pytest.raises(ConfigError, match="config must be an EngineConfig"):
        Engine("model.gguf")
    with pytest.raises(ConfigError, match="num_threads"):
        Engine(EngineConfig(), num_threads=0)


def test_repr(engine):
    assert repr(engine) == f"<Engine fake 'hash', 0 layers, n_vocab {N_VOCAB}, context_size 64>"
