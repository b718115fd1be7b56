"""lm-evaluation-harness over an engine: scores, rolling windows, generation, and whole tasks without a network."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oxillama.errors import ConfigError, ContextOverflowError

pytest.importorskip("lm_eval", reason="the package lm_eval is missing: pip install '.[lm-eval]'")
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from oxillama.integrations.lm_eval import OxillamaLM, options_of

ROOT = Path(__file__).parents[2]
CHOICES = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: [" red", " blue", " dog"]
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}]
"""
TEXTS = """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/colours.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
"""
SUMS = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/colours.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
"""
DOCS = [{"text": "The ball was", "label": 0}, {"text": "The little fox was", "label": 1}]


@pytest.fixture(scope="module")
def lm(engine):
    return OxillamaLM(engine)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, engine):
    """Folder of three tasks over the same documents, whose answers are what greedy generation gives."""
    folder = tmp_path_factory.mktemp("tasks")
    docs = [doc | {"answer": engine.generate(doc["text"], max_tokens=8, stop=".", temperature=0).text} for doc in DOCS]
    (folder / "colours.jsonl").write_text("\n".join(map(json.dumps, docs)))
    for name, text in {"colours": CHOICES, "texts": TEXTS, "sums": SUMS}.items():
        (folder / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    return folder


def asked(kind, *arguments):
    return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]


def logprob(engine, ids, n):
    """Log-probability of the last n tokens, from the logits of the whole."""
    rows = engine.forward_logits(ids).astype("float64")
    total = 0.0
    for place in range(len(ids) - n, len(ids)):
        row = rows[place - 1]
        total += row[ids[place]] - row.max() - math.log(sum(math.exp(x - row.max()) for x in row.tolist()))
    return total


def test_continuations_have_the_scores_of_the_whole_text(lm, engine):
    pairs = [("A girl named", " Lily"), ("A girl named", " Tom and a dog"), ("Once upon a", " time"), ("", "Once")]
    found = lm.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    for (context, continuation), (score, greedy) in zip(pairs, found, strict=True):
        whole = engine.tokenize(context + continuation)
        n = len(whole) - len(engine.tokenize(context))
        assert score == pytest.approx(logprob(engine, whole, n), rel=1e-5)
        ahead = engine.generate(whole[:-n], max_tokens=n, temperature=0).token_ids
        assert greedy == (ahead == whole[-n:])
    assert any(greedy for _, greedy in found)
    assert not all(greedy for _, greedy in found)


def test_what_is_longer_than_the_context_loses_its_beginning(lm, engine):
    long = "One day the fox ran. " * 400
    assert len(engine.tokenize(long)) > engine.context_size
    (found,) = lm.loglikelihood(asked("loglikelihood", (long, " Then he slept")), disable_tqdm=True)
    whole = engine.tokenize(long + " Then he slept")
    n = len(whole) - len(engine.tokenize(long.rstrip()))
    assert found[0] == pytest.approx(logprob(engine, whole[-engine.context_size :], n), rel=1e-5)
    with pytest.raises(ContextOverflowError):
        lm.loglikelihood(asked("loglikelihood", ("A", long)), disable_tqdm=True)


def test_rolling_windows_score_each_token_once(lm, engine):
    short, long = "The little fox ran.", "One day the fox ran to the sea. " * 300
    found = lm.loglikelihood_rolling(asked("loglikelihood_rolling", (short,), (long,), ("",)), disable_tqdm=True)
    bos, ids = engine.tokenizer.bos_id, engine.tokenize(long, add_special=False)
    assert found[0] == pytest.approx(logprob(engine, engine.tokenize(short), len(engine.tokenize(short)) - 1), rel=1e-5)
    room = engine.context_size - 1
    n_last = len(ids) % room
    assert len(ids) // room == 2
    windows = [([bos, *ids[:room]], room), (ids[room - 1 : 2 * room], room), (ids[-room - 1 :], n_last)]
    expected = sum(logprob(engine, *window) for window in windows)
    assert found[1:] == [pytest.approx(expected, rel=1e-5), 0.0]


def test_generated_texts_end_before_a_stop_string(lm, engine):
    contexts = ["Once upon a time", "The dog", "Once upon a time"]
    settings = [{"until": ["."], "max_gen_toks": 20}, {"until": "\n", "max_gen_toks": 5}, {"until": ["."]}]
    found = lm.generate_until(asked("generate_until", *zip(contexts, settings, strict=True)), disable_tqdm=True)
    expected = [
        engine.generate(text, temperature=0, max_tokens=n, stop=stop).text
        for text, n, stop in zip(contexts, (20, 5, 256), (".", "\n", "."), strict=True)
    ]
    assert found == expected
    assert all("." not in text for text in (found[0], found[2]))


def test_settings_of_tasks():
    assert options_of({}, 256) == {"stop": None, "max_tokens": 256, "temperature": 0.0}
    drawn = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "until": ["a", ""], "max_gen_toks": 3}
    assert options_of(drawn, 256) == {"stop": ["a"], "max_tokens": 3, "temperature": 0.7, "top_p": 0.9}
    assert options_of({"do_sample": False, "temperature": 0.7, "max_new_tokens": 4}, 256)["temperature"] == 0.0


def test_a_setting_that_the_engine_lacks_is_named(lm):
    with pytest.raises(TypeError, match="num_beams"):
        lm.generate_until(asked("generate_until", ("Once", {"num_beams": 4})), disable_tqdm=True)


def test_a_prompt_that_is_too_long_leaves_room_for_its_answer(lm, engine):
    long = "One day the fox ran. " * 400
    (found,) = lm.generate_until(asked("generate_until", (long, {"max_gen_toks": 7})), disable_tqdm=True)
    ids = engine.tokenize(long)[-(engine.context_size - 7) :]
    assert found == engine.generate(ids, max_tokens=7, temperature=0).text


def test_control_tokens_of_a_template_are_tokens(lm, engine):
    messages = [{"role": "user", "content": "Tell me a story."}]
    text = lm.apply_chat_template(messages)
    assert lm.tok_encode(text) == engine.chat_tokens(messages)
    assert lm.chat_template(True) == engine.tokenizer.chat_template
    begun = lm.apply_chat_template([*messages, {"role": "assistant", "content": "Once"}], add_generation_prompt=False)
    assert begun.endswith("Once")


def test_the_model_is_found_by_its_name(engine):
    assert get_model("oxillama") is OxillamaLM
    lm = OxillamaLM.create_from_arg_string("max_gen_toks=9,num_threads=1", {"batch_size": 4, "device": "cpu"})
    assert (lm.max_gen_toks, lm.max_length, lm.engine.num_threads) == (9, engine.context_size, 1)
    lm.close()
    with pytest.raises(TypeError, match="no_such_field"):
        OxillamaLM(no_such_field=1)
    with pytest.raises(ConfigError, match="max_gen_toks"):
        OxillamaLM(max_gen_toks=0)


def test_tasks_run(lm, tasks, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = simple_evaluate(lm, tasks=["colours", "texts", "sums"], task_manager=manager, bootstrap_iters=0)
    expected = 0
    for doc in DOCS:
        scores = lm.engine.score(doc["text"], [" red", " blue", " dog"])
        expected += max(scores, key=lambda score: score.logprob).index == doc["label"]
    assert found["results"]["colours"]["acc,none"] == expected / 2
    assert found["results"]["sums"]["exact_match,none"] == 1.0
    assert found["results"]["texts"]["word_perplexity,none"] > 1


def test_the_command(tasks):
    command = [sys.executable, "-m", "oxillama.integrations.lm_eval", "run", "--model", "oxillama", "--model_args"]
    command += ["num_threads=1", "--tasks", "colours", "--include_path", str(tasks)]
    offline = os.environ | {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=offline)
    assert done.returncode == 0, done.stderr
    assert "colours" in done.stdout
    assert "acc" in done.stdout
