"""The plugin of `llm`, by its library and by its command."""

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from oxillama.core.loading import shipped_model

pytest.importorskip("llm", reason="the package llm is missing: pip install '.[llm]'")
import llm
from click.testing import CliRunner
from llm.cli import cli
from llm.plugins import load_plugins, pm

from oxillama.integrations import llm as plugin

ROOT = Path(__file__).parents[2]
OPTIONS = {"max_tokens": 12, "seed": 1}
ASK = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Tell me one."}]


def weather(city: str) -> str:
    """Looks the weather up."""
    return f"sun in {city}"


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    """The plugin, as its entry point registers it, with a folder of settings of its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("LLM_USER_PATH", str(tmp_path_factory.mktemp("llm")))
    patch.setattr(sys, "_called_from_test", True, raising=False)
    load_plugins()
    if not pm.is_registered(plugin):
        pm.register(plugin, "oxillama")
        plugin.register_commands(cli)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def model(engine):
    return plugin.OxillamaModel("oxillama:test", engine)


def ran(*arguments, status=0, given=None):
    done = CliRunner().invoke(cli, list(arguments), input=given, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done.output


def test_the_entry_point_names_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"llm": {"oxillama": plugin.__name__}}


def test_an_answer_is_that_of_the_engine(model, engine):
    expected = engine.chat(ASK, **OPTIONS)
    response = model.prompt("Tell me one.", system="You tell stories.", **OPTIONS)
    pieces = list(response)
    assert len(pieces) > 3
    assert "".join(pieces) == response.text() == expected.text
    usage = response.usage()
    assert (usage.input, usage.output) == (expected.prompt_tokens, len(expected.token_ids))
    assert model.prompt("Tell me one.", system="You tell stories.", stream=False, **OPTIONS).text() == expected.text


def test_a_conversation_goes_on(model, engine):
    conversation = model.conversation()
    first = conversation.prompt("Tell me one.", **OPTIONS).text()
    turns = [ASK[1], {"role": "assistant", "content": first}, {"role": "user", "content": "And then?"}]
    assert conversation.prompt("And then?", **OPTIONS).text() == engine.chat(turns, **OPTIONS).text


def test_answers_are_held_to_a_schema(model):
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}}}
    schema |= {"required": ["age"], "additionalProperties": False}
    found = json.loads(model.prompt("A person.", schema=schema, max_tokens=30, seed=1).text())
    assert 1 <= found["age"] <= 99


def test_calls_of_tools(model):
    options = {"tool_format": "hermes", "tool_choice": "weather", "max_tokens": 60, "seed": 1}
    response = model.prompt("How is the weather?", tools=[weather], **options)
    (call,) = response.tool_calls()
    assert (call.name, set(call.arguments)) == ("weather", {"city"})
    (result,) = response.execute_tool_calls()
    assert result.output == weather(**call.arguments)
    conversation = model.conversation(tools=[weather])
    conversation.prompt("How is the weather?", **options).text()
    last = conversation.prompt("", tool_results=[result], max_tokens=5, seed=1)
    assert last.text()
    roles = [message["role"] for message in plugin.openai_messages(last.prompt.messages)]
    assert roles == ["user", "assistant", "tool"]
    cut = model.prompt("How is the weather?", tools=[weather], **options | {"max_tokens": 20})
    assert "<tool_call>" in cut.text()
    assert cut.tool_calls() == []


def test_vectors(engine):
    model = plugin.OxillamaEmbeddingModel("oxillama:test", engine)
    texts = ["a ball", "a dog", "the fox. " * 900]
    found = list(model.embed_multi(texts, batch_size=2))
    assert np.array_equal(np.float32(found), engine.embed(texts, truncate="end"))
    assert model.embed("a dog") == found[1]
    with pytest.raises(ValueError, match="binary"):
        model.embed(b"a dog")


def test_errors_are_those_of_the_library(model, tmp_path):
    with pytest.raises(llm.ModelError, match="temperature"):
        model.prompt("Hi", temperature=-1).text()
    with pytest.raises(llm.ModelError, match="no/such"):
        plugin.OxillamaModel("x", "no/such.gguf").prompt("Hi").text()
    with pytest.raises(llm.ModelError, match=r"such\.gguf"):
        plugin.OxillamaEmbeddingModel("x", tmp_path / "such.gguf").embed("Hi")
    with pytest.raises(ValueError, match="attachments"):
        model.prompt("Hi", attachments=[llm.Attachment(content=b"abc", type="image/png")])


def test_the_command(engine):
    path = str(shipped_model())
    assert "oxillama" in ran("models", "list")
    assert ran("oxillama", "add", "tiny", path, "-t", "1", "-c", "512") == "oxillama:tiny\n"
    assert ran("oxillama", "list") == f"oxillama:tiny: {Path(path).resolve()}\n"
    options = ["-o", "max_tokens", "12", "-o", "seed", "1", "--no-log"]
    expected = engine.chat(ASK, **OPTIONS).text
    said = ran("-m", "oxillama:tiny", "Tell me one.", "-s", "You tell stories.", *options)
    assert said == expected + "\n"
    assert ran("embed", "-m", "oxillama:tiny", "-c", "a dog") == json.dumps(engine.embed("a dog").tolist()) + "\n"
    assert plugin.listed()["tiny"]["engine"] == {"num_threads": 1, "context_size": 512}
    assert ran("oxillama", "remove", "oxillama:tiny") == ""
    assert "there is no model" in ran("oxillama", "remove", "tiny", status=1)
    assert ran("oxillama", "list") == ""


def test_an_older_llm_starts_without_it(monkeypatch):
    monkeypatch.setattr(plugin, "Message", None)
    found = []
    plugin.register_models(found.append)
    plugin.register_embedding_models(found.append)
    assert found == []


def test_a_damaged_list_is_named():
    place = llm.user_dir() / "oxillama.json"
    for text in ("{", "[]", '{"a": 1}', '{"a": {"model": "b"}}'):
        place.write_text(text)
        assert "oxillama.json is no list of models" in ran("oxillama", "list", status=1)
    place.unlink()
