"""What counts for sampling options that a call doesn't give: the file's own, in every call that makes text."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

import oxillama as ox
from oxillama.cli import main
from oxillama.config import SamplerConfig
from oxillama.sampling import SamplerChain
from oxillama.sampling.chain import make_chain
from oxillama.snapshot.request_state import config_of, sampler_config_state

PROMPT = "Once upon a time"
# Of another file: all of them decide over the text.
KEYS = {"temp": 1.3, "top_k": 9, "penalty_repeat": 1.7}
OVERRIDES = {f"general.sampling.{key}": value for key, value in KEYS.items()}
OF_FILE = SamplerConfig(temperature=1.3, top_k=9, top_p=0.95, min_p=0.05, repetition_penalty=1.7)
MESSAGES = [{"role": "user", "content": "Tell me a story about a cat."}]
OPTIONS = {"max_tokens": 24, "seed": 5}


@pytest.fixture(scope="module")
def shipped():
    with ox.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def other():
    with ox.load(num_threads=1, overrides=OVERRIDES) as engine:
        yield engine


def test_the_shipped_file_has_its_own(shipped):
    assert shipped.sampling_defaults == SamplerConfig(temperature=0.8, top_p=0.95, min_p=0.05)
    assert shipped.metadata["general.sampling.top_k"] == 40


def test_every_call_takes_those_of_the_file(other):
    assert other.sampling_defaults == OF_FILE
    sampler = replace(OF_FILE, seed=5)
    wanted = other.generate(PROMPT, max_tokens=24, sampler=sampler).token_ids
    assert other.generate(PROMPT, **OPTIONS).token_ids == wanted
    assert [r.token_ids for r in other.generate([PROMPT, PROMPT], **OPTIONS)] == [wanted] * 2
    assert [t for chunk in other.stream(PROMPT, **OPTIONS) for t in chunk.token_ids] == wanted
    assert [r.token_ids for r in other.batch([PROMPT], **OPTIONS)] == [wanted]
    assert other.generate(PROMPT, draft="lookup", **OPTIONS).token_ids == wanted
    assert drawn_in_a_session(other) == wanted
    with ox.SpeculativeEngine(other, "lookup") as spec:
        assert spec.generate(PROMPT, **OPTIONS).token_ids == wanted
    answer = other.chat(MESSAGES, max_tokens=24, sampler=sampler).token_ids
    assert other.chat(MESSAGES, **OPTIONS).token_ids == answer
    assert wanted != other.generate(PROMPT, max_tokens=24, sampler=SamplerConfig(seed=5)).token_ids


def drawn_in_a_session(engine):
    with engine.session() as session:
        session.prefill(engine.tokenize(PROMPT))
        found = []
        while len(found) < OPTIONS["max_tokens"]:
            found.append(session.sample(seed=5))
            session.forward_one(found[-1])
        return found


def test_coroutines_take_them_too(other):
    wanted = other.generate(PROMPT, **OPTIONS).token_ids

    async def run():
        engine = ox.AsyncEngine(other)
        whole = (await engine.generate(PROMPT, **OPTIONS)).token_ids
        parts = [t async for chunk in engine.stream(PROMPT, **OPTIONS) for t in chunk.token_ids]
        many = [r.token_ids async for r in engine.batch([PROMPT], **OPTIONS)]
        return whole, parts, *many

    assert asyncio.run(run()) == (wanted,) * 3


def test_the_command_line_takes_them_too(other, capsys):
    given = [part for key, value in OVERRIDES.items() for part in ("--override", f"{key}={value}")]
    assert main(["run", PROMPT, "-n", "24", "--seed", "5", "-t", "1", *given]) == 0
    assert capsys.readouterr().out == other.generate(PROMPT, **OPTIONS).text + "\n"
    assert main(["info"]) == 0
    assert "temp 0.8, top_k 40, top_p 0.95, min_p 0.05" in capsys.readouterr().out


def test_what_a_call_gives_goes_before(other):
    for field, value in (("temperature", 0.5), ("top_k", 3), ("repetition_penalty", 1.0), ("min_p", 0.2)):
        wanted = other.generate(PROMPT, max_tokens=16, sampler=replace(OF_FILE, seed=5, **{field: value}))
        assert other.generate(PROMPT, max_tokens=16, seed=5, **{field: value}).token_ids == wanted.token_ids


def test_a_sampler_counts_as_a_whole(shipped, other):
    config = SamplerConfig(temperature=0.9, seed=5)
    for sampler in (config, SamplerChain.from_config(config)):
        assert other.generate(PROMPT, max_tokens=16, sampler=sampler).token_ids == (
            shipped.generate(PROMPT, max_tokens=16, sampler=sampler).token_ids
        )
    assert make_chain(
        SamplerConfig.original(), {"temperature": 0.0}, SamplerChain.from_config(OF_FILE)
    ).config == replace(SamplerConfig.original(), temperature=0.0)


# ---- temperature 0


def argmax_text(engine, ids, n):
    """By one whole forward pass for each token."""
    ids, n_prompt = list(ids), len(ids)
    while len(ids) < n_prompt + n:
        token = int(np.argmax(engine.forward_logits(ids)[-1]))
        if engine.is_eos(token):
            break
        ids.append(token)
    return ids[n_prompt:]


NAMES = [
    "Rosa", "Max", "Lily", "Tom", "Anna", "Ben", "Mia", "Leo", "Ella", "Sam",
    "Nora", "Finn", "Ida", "Paul", "Emma", "Jack", "Zoe", "Otto", "Clara", "Hugo",
]  # fmt: skip


def test_json_answers_at_temperature_0_are_the_likeliest_tokens(shipped):
    requests = [[{"role": "user", "content": f"Describe {name} as JSON."}] for name in NAMES]
    prompts = [shipped.chat_tokens(messages) for messages in requests]
    found = [r.token_ids for r in shipped.generate(prompts, max_tokens=40, temperature=0)]
    assert found == [argmax_text(shipped, ids, 40) for ids in prompts]
    assert found[0] == shipped.chat(requests[0], max_tokens=40, temperature=0.0).token_ids


def test_penalties_of_the_file_don_t_count_at_temperature_0(other):
    ids = other.tokenize("The cat sat on the mat. The cat sat on the mat. The cat")
    wanted = argmax_text(other, ids, 12)
    assert other.generate(ids, max_tokens=12, temperature=0).token_ids == wanted
    assert other.generate(ids, max_tokens=12, temperature=0, seed=3, top_k=5).token_ids == wanted
    asked = other.generate(ids, max_tokens=12, temperature=0, repetition_penalty=1.7).token_ids
    assert asked == other.generate(ids, max_tokens=12, sampler=replace(OF_FILE, temperature=0.0)).token_ids
    assert asked != wanted


def test_mirostat_of_the_file_doesn_t_count_at_temperature_0():
    defaults = SamplerChain.from_config(
        SamplerConfig(mirostat=2, repetition_penalty=1.2, dry_multiplier=0.8, presence_penalty=0.5)
    )
    assert make_chain(None, {"temperature": 0}, defaults).config == SamplerConfig.greedy()
    assert make_chain(None, {}, defaults) is defaults
    with pytest.raises(ox.ConfigError, match="temperature must be above 0 with mirostat"):
        make_chain(None, {"temperature": 0, "mirostat": 1}, defaults)
    with pytest.raises(ox.ConfigError, match="temperature must be"):
        make_chain(None, {"temperature": "0"}, defaults)


# ---- snapshots


def test_a_text_goes_on_as_it_began_whatever_the_defaults_are_by_then(shipped, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(shipped.context.factory, "default_chain", SamplerChain.from_config(OF_FILE))
        wanted = shipped.generate(PROMPT, **OPTIONS).text
        stream = shipped.stream(PROMPT, **OPTIONS)
        said = next(stream).text
        saved = stream.snapshot()
    assert wanted != shipped.generate(PROMPT, **OPTIONS).text
    assert said + "".join(chunk.text for chunk in shipped.resume(saved)) == wanted


def test_what_a_file_leaves_out_keeps_its_meaning():
    """Files say what differs from the defaults of the time when their format was made."""
    old = config_of({"temperature": 0.5})
    assert (old.top_k, old.top_p, old.repetition_penalty, old.repetition_penalty_window) == (40, 0.9, 1.1, 64)
    assert sampler_config_state(SamplerConfig.original()) == {}
    assert sampler_config_state(SamplerConfig(top_k=5)) == {"top_k": 5, "repetition_penalty": 1.0}
    for config in (SamplerConfig(), SamplerConfig.original(), SamplerConfig(seed=1, min_p=0.1)):
        assert config_of(sampler_config_state(config)) == replace(config, schema_mode="full")
