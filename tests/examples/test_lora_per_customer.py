"""Adapters by customer: each answer is the one it has alone, and few adapters stay in memory."""

import asyncio

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.examples import lora_per_customer
from oxillama.examples.lora_per_customer import Customers, answers
from tests.lora.files import linear_shapes, random_factors, write_adapter

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("customers")
    shapes = {name: shape for name, shape in linear_shapes(shipped_model()).items() if "ffn_up" in name}
    for seed, name in enumerate(["acme", "globex", "initech"]):
        write_adapter(found / f"{name}.gguf", "llama", random_factors(shapes, 4, seed=seed))
    return found


@pytest.fixture
def alone(folder):
    """Text of each customer, each with an engine of its own."""
    found = {}
    for path in folder.iterdir():
        with ox.load() as engine:
            engine.load_lora("only", path)
            found[path.stem] = engine.generate(PROMPT, lora="only", max_tokens=40, temperature=0.0).text
    assert len(set(found.values())) == 3
    return found


@pytest.mark.parametrize("most", [1, 2, 16])
def test_every_customer_has_the_answer_of_its_adapter_alone(folder, alone, most):
    asked = [(name, PROMPT) for name in ("acme", "globex", "initech", "acme")]
    with ox.load() as engine:
        customers = Customers(engine, folder, most)
        found = asyncio.run(answers(engine, customers, asked))
        assert [completion.text for completion in found] == [alone[name] for name, _ in asked]
        assert set(engine.loras) == set(customers.loaded)
        assert len(customers.loaded) == min(most, 3)


def test_the_adapter_that_was_used_last_stays(folder):
    with ox.load() as engine:
        customers = Customers(engine, folder, most=2)
        for name in ("acme", "globex", "acme", "initech"):
            customers.adapter(name)
        assert set(engine.loras) == {"acme", "initech"}


@pytest.mark.parametrize("name", ["hooli", "../customers/acme", "acme.gguf", ""])
def test_a_name_that_is_no_customer_never_becomes_a_path(folder, name):
    with ox.load() as engine:
        customers = Customers(engine, folder)
        with pytest.raises(ox.ConfigError, match="there is no adapter of"):
            customers.adapter(name)
        assert list(engine.loras) == []


def test_it_runs(folder, alone, capsys):
    lora_per_customer.main([str(folder), f"acme={PROMPT}", f"globex={PROMPT}"])
    assert capsys.readouterr().out == f"acme: {alone['acme']}\nglobex: {alone['globex']}\n"


def test_a_request_without_a_prompt_is_refused(folder, capsys):
    with pytest.raises(SystemExit):
        lora_per_customer.main([str(folder), "acme"])
    assert "'acme' must be CUSTOMER=PROMPT" in capsys.readouterr().err
