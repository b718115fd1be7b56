"""`oxillama diffuse`: the text of `Engine.diffuse`, with the options of the command line."""

import pytest

import oxillama as ox
from tests.models.denoiser import denoiser

ONE_THREAD = ("-t", 1, "--kv-type", "f32")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return denoiser(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["-n", 9], {"max_tokens": 9}),
        (["-n", 12, "--steps", 5, "--order", "topk_margin"], {"max_tokens": 12, "steps": 5, "order": "topk_margin"}),
        (
            ["-n", 8, "--block-length", 4, "--temperature", 0.9, "--seed", 3, "--cfg-scale", 0.5],
            {"max_tokens": 8, "block_length": 4, "temperature": 0.9, "seed": 3, "cfg_scale": 0.5},
        ),
    ],
)
def test_texts_are_those_of_the_engine(run, model, flags, options):
    with ox.load(model, num_threads=1, kv_type="f32") as engine:
        expected = engine.diffuse("A little fox", **options)
    status, out, err = run("diffuse", "A little fox", "-m", model, *ONE_THREAD, *flags)
    assert (status, out) == (0, expected.text + "\n")
    assert f"{expected.prompt_tokens} prompt tokens; {len(expected.token_ids)} generated" in err
    assert "step" not in err


def test_prompts_and_steps_are_shown(run, model):
    plain = run("diffuse", "A fox", "-m", model, *ONE_THREAD, "-n", 4)[1]
    status, out, err = run("diffuse", "-", "--echo", "--progress", "-m", model, *ONE_THREAD, "-n", 4, stdin="A fox")
    assert (status, out) == (0, "A fox" + plain)
    assert [f"\rstep {n}: " in err for n in range(1, 5)] == [True] * 4
    assert "0 of 4 masked" in err


def test_a_message_of_a_chat(run, model):
    with ox.load(model, num_threads=1, kv_type="f32") as engine:
        expected = engine.diffuse(engine.chat_tokens([{"role": "user", "content": "Hi"}]), max_tokens=4)
    assert run("diffuse", "Hi", "--chat", "-m", model, *ONE_THREAD, "-n", 4)[1] == expected.text + "\n"


def test_other_commands_say_what_is_for_it(run, model):
    assert "`oxillama diffuse` writes with it" in run("run", "Hi", "-m", model)[2]
