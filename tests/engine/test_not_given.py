"""None stands for an option that is not given, in each call: the result is that of the call without it."""

import asyncio

import pytest

import oxillama as ox
import oxillama.data as oxd
from oxillama.core.batch import BatchPrompt
from oxillama.core.beam_rounds import BeamSearchOptions
from oxillama.core.denoising import DiffuseOptions
from oxillama.core.embedding import EmbedOptions
from oxillama.core.options import BatchOptions, ChatOptions, GenerateOptions, InfillOptions, StreamOptions
from oxillama.core.ranking import RerankOptions
from oxillama.core.session import SessionOptions
from oxillama.sampler_config import SamplingOptions
from oxillama.snapshot.restore import RestoreOptions
from tests.models.denoiser import denoiser

GAP = {f"tokenizer.ggml.fim_{name}_token_id": i for i, name in enumerate(("pre", "suf", "mid"), 5)}
TOLD = {"max_tokens": 4, "seed": 3}
SAID = [{"role": "user", "content": "Once"}]
TEMPLATE = "{{ messages[0].content }}"
CHAT = {**TOLD, "chat_template": TEMPLATE}
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1, overrides=GAP) as engine:
        yield engine


def none(*tables, but=()):
    """Every keyword of TypedDicts as None."""
    return {name: None for table in tables for name in table.__annotations__ if name not in but}


CALLS = {
    "generate": lambda e, o: e.generate("Once", **TOLD, **o).token_ids,
    "stream": lambda e, o: [chunk.text for chunk in e.stream("Once", **TOLD, **o)],
    "batch": lambda e, o: [one.token_ids for one in e.batch(["Once", "A"], **TOLD, **o)],
    "chat": lambda e, o: e.chat(SAID, **CHAT, **o).token_ids,
    "infill": lambda e, o: e.infill("a", "b", **TOLD, **o).token_ids,
}
KEYWORDS = {
    "generate": none(GenerateOptions),
    "stream": none(StreamOptions),
    "batch": {"errors": None, **none(BatchOptions)},
    "chat": {"stream": None, **none(ChatOptions)},
    "infill": {"stream": None, **none(InfillOptions)},
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_for_texts(engine, name):
    call, kept = CALLS[name], {**TOLD, "chat_template": None}
    keywords = {"n": None, **{one: None for one in KEYWORDS[name] if one not in kept}}
    assert call(engine, keywords) == call(engine, {})
    with ox.SpeculativeEngine(engine, "lookup", num_speculative=7) as speculative:
        without = {one: None for one in keywords if one != "draft"}
        assert call(speculative, without) == call(speculative, {})


def test_an_engine_with_a_draft_keeps_its_own_settings(engine):
    with ox.SpeculativeEngine(engine, "lookup", num_speculative=7, seed=5, context_size=None) as own:
        found = own._with({"num_speculative": None, "acceptance": None, "seed": None, "top_k": None})
        assert (found["num_speculative"], found["acceptance"], found["seed"]) == (7, "match", 5)
        assert own._with({"draft": None})["draft"] is None
        with pytest.raises(TypeError, match="zeal"):
            own.generate("Once", zeal=None)


def test_coroutines(engine):
    async def run():
        calls = ox.AsyncEngine(engine)
        one = await calls.chat(SAID, stream=None, n=None, tool_use=None, **CHAT)
        other = await calls.infill("a", "b", stream=None, suffix_first=None, **TOLD)
        return one.token_ids, other.token_ids, await calls.infill_tokens("a", "b", suffix_first=None)

    expected = engine.chat(SAID, **CHAT).token_ids, engine.infill("a", "b", **TOLD).token_ids
    assert asyncio.run(run()) == (*expected, engine.infill_tokens("a", "b"))


def test_tools_beside_no_tool_use(engine):
    options = {"max_tokens": 2, "seed": 3, "chat_template": TEMPLATE + "{{ tools }}", "tools": WEATHER}
    options["tool_format"] = "hermes"
    assert engine.chat(SAID, tool_use=None, **options).token_ids == engine.chat(SAID, **options).token_ids


def test_options_of_one_prompt_of_a_batch(engine):
    own = dict.fromkeys(("n", *StreamOptions.__annotations__))
    (found,) = engine.batch([BatchPrompt("Once", own)], **TOLD)
    assert found.token_ids == engine.generate("Once", **TOLD).token_ids
    (found,) = engine.batch([BatchPrompt("Once", {"n": 2})], errors="yield")
    assert "must leave n to the batch" in str(found.error)


def test_beams(engine):
    config = ox.BeamSearchConfig(beam_width=2, max_new_tokens=4)
    found = engine.beam_search("Once", config, **none(BeamSearchOptions))
    assert [one.token_ids for one in found] == [one.token_ids for one in engine.beam_search("Once", config)]
    assert len(found) == 2


def test_sessions(engine):
    with engine.session(**none(SessionOptions)) as session:
        session.prefill(engine.tokenize("Once"))
        session.sample(temperature=0.5, seed=3)
        kept = session.sampler
        session.sample(**none(SamplingOptions))
        assert session.sampler is kept
        assert session.sample(kept, **none(SamplingOptions)) < engine.n_vocab


def test_vectors(engine):
    assert (engine.embed("Once", pooling=None, **none(EmbedOptions, but=("dtype",))) == engine.embed("Once")).all()
    rows = {"text": ["Once"]}
    assert oxd.Embed(engine, input="text", on_error=None, progress=None, **none(EmbedOptions))(rows).keys() == {
        "text",
        "vector",
    }
    assert oxd.Rerank(engine, **none(RerankOptions)).inputs == ("query", "documents")


def test_denoising(tmp_path):
    with ox.load(denoiser(tmp_path), num_threads=1) as engine:
        expected = engine.diffuse([1, 2], max_tokens=3)
        assert engine.diffuse([1, 2], max_tokens=3, **none(DiffuseOptions, but=("max_tokens",))) == expected


def test_restored_engines(engine, tmp_path):
    engine.snapshot(tmp_path / "whole", base=None)
    with ox.Engine.restore(tmp_path / "whole", None, **none(RestoreOptions, but=("allow_download",))) as found:
        assert (found.context_size, dict(found.config.overrides)) == (engine.context_size, GAP)


def test_an_engine_keeps_the_settings_of_its_config():
    config = ox.EngineConfig(num_threads=1, context_size=64)
    with ox.Engine(config, context_size=None) as engine:
        assert engine.context_size == 64
        with ox.DraftModel(engine, repack=None, kv_budget=None) as draft:
            assert draft.context_size == 64


def test_rows_of_tables(engine):
    rows, schema = {"p": ["Once"]}, {"type": "object", "properties": {"a": {"type": "integer"}}}
    names = [*GenerateOptions.__annotations__, "n", "errors", "ordered", "max_in_flight"]
    options = {name: None for name in names if name not in TOLD}
    made = oxd.Generate(engine, prompt="p", details=None, on_error=None, progress=None, **TOLD, **options)
    plain = oxd.Generate(engine, prompt="p", **TOLD)
    assert made(rows) == plain(rows)
    assert made.job() == plain.job()
    assert oxd.Generate(engine, prompt="p", json_schema=schema, schema_mode=None).results() == (
        oxd.Generate(engine, prompt="p", json_schema=schema).results()
    )
    assert oxd.Generate(engine, prompt="p", json_schema=None, echo=True, **TOLD)(rows)["answer"][0].startswith("Once")
    with pytest.raises(TypeError, match="zeal"):
        oxd.Generate(engine, prompt="p", zeal=None)
    assert oxd.Generate(engine, prompt="p", engine={"num_threads": None}, **TOLD)(rows) == plain(rows)
