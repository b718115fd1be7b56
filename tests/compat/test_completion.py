"""Completions: dicts as recorded of the replaced package, texts and log-probabilities as the engine computes them."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import oxillama
import oxillama.compat as llama_cpp
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, ContextOverflowError, GrammarError, UnsupportedModelError
from tests.compat.shapes import SHAPES, shape

PROMPT = "Once upon a time"


def text(answer):
    return answer["choices"][0]["text"]


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(context_size=256) as loaded:
        yield loaded


def test_shapes(model):
    assert shape(model(PROMPT, max_tokens=8)) == SHAPES["completion"]
    chunks = list(model.create_completion(PROMPT, max_tokens=4, temperature=0, stream=True))
    assert [shape(chunks[0]), shape(chunks[-1])] == [SHAPES["chunk"], SHAPES["last_chunk"]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    *_, last = model(PROMPT, max_tokens=4, logprobs=2, stream=True)
    assert shape(last) == SHAPES["last_chunk"]
    first = next(model(PROMPT, max_tokens=4, temperature=0, logprobs=2, stream=True))["choices"][0]["logprobs"]
    assert shape(first) == SHAPES["chunk_logprobs"]


def test_greedy_texts_are_the_engines(model, engine):
    expected = engine.generate(PROMPT, max_tokens=40, temperature=0)
    answer = model(PROMPT, max_tokens=40, temperature=0, model="name")
    assert (text(answer), answer["choices"][0]["finish_reason"]) == (expected.text, expected.finish_reason)
    assert answer["model"] == "name"
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45}
    assert "".join(text(c) for c in model(PROMPT, max_tokens=40, temperature=0, stream=True)) == expected.text
    assert text(model(engine.tokenize(PROMPT), max_tokens=40, temperature=0)) == expected.text


def test_defaults_are_the_replaced_packages(model, engine):
    expected = engine.generate(PROMPT, max_tokens=16, temperature=0.8, top_p=0.95, min_p=0.05, top_k=40, seed=3)
    assert text(model(PROMPT, seed=3)) == expected.text


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"temperature": -1}, {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}),
        ({"temperature": 0.2, "mirostat_mode": 2}, {"temperature": 1, "mirostat": 2, "top_p": 0.95, "min_p": 0.05}),
        ({"repeat_penalty": 1.3, "top_k": -1}, {"repetition_penalty": 1.3, "top_k": 0, "top_p": 0.95, "min_p": 0.05}),
        ({"logit_bias": {"17": -100.0}, "typical_p": 0.5}, {"logit_bias": {17: -100.0}, "typical_p": 0.5}),
    ],
)
def test_sampling_keywords(model, engine, theirs, ours):
    ours = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05} | ours
    expected = engine.generate(PROMPT, max_tokens=20, seed=5, **ours)
    assert text(model(PROMPT, max_tokens=20, seed=5, **theirs)) == expected.text


def test_logprobs_are_those_of_the_forward_pass(model, engine):
    answer = model(PROMPT, max_tokens=3, temperature=0, logprobs=2, echo=True)
    choice = answer["choices"][0]
    found = choice["logprobs"]
    assert choice["text"].startswith(PROMPT)
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"] == [len("".join(found["tokens"][:i])) for i in range(7)]
    ids = engine.tokenize(choice["text"])
    rows = llama_cpp.Llama.logits_to_logprobs(engine.forward_logits(ids).astype(np.float64))
    expected = [rows[i, token] for i, token in enumerate(ids[1:])][1:]
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert np.allclose(found["token_logprobs"][1:], expected, atol=1e-5)
    for i in range(4, 7):  # greedy: the token is the likeliest
        top = found["top_logprobs"][i]
        assert (top[found["tokens"][i]], len(top)) == (found["token_logprobs"][i], 2)
        assert found["token_logprobs"][i] == max(top.values())


def test_logprobs_without_echo_begin_after_the_prompt(model):
    both = [
        model(PROMPT, max_tokens=3, temperature=0, logprobs=2, echo=e)["choices"][0]["logprobs"] for e in (False, True)
    ]
    for name, values in both[0].items():
        assert values == both[1][name][4:]
    streamed = [
        c["choices"][0]["logprobs"] for c in model(PROMPT, max_tokens=3, temperature=0, logprobs=2, stream=True)
    ]
    joined = {name: [value for c in streamed if c for value in c[name]] for name in both[0]}
    assert joined == both[0]


def test_stop_strings(model):
    whole = text(model(PROMPT, max_tokens=40, temperature=0))
    stop = whole[20:23]
    answer = model(PROMPT, max_tokens=40, temperature=0, stop=stop)
    assert (text(answer), answer["choices"][0]["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    streamed = model(PROMPT, max_tokens=40, temperature=0, stop=[stop], stream=True)
    assert "".join(text(chunk) for chunk in streamed) == text(answer)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_stopping_criteria_see_the_text_before_a_token(model, n):
    seen = []

    def criterion(input_ids, scores):
        seen.append((input_ids.dtype, len(input_ids), scores.shape))
        return len(input_ids) == 5 + n

    criteria = llama_cpp.StoppingCriteriaList([criterion])
    answer = model(PROMPT, max_tokens=30, temperature=0, stopping_criteria=criteria)
    assert answer["usage"]["completion_tokens"] == n
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert text(answer) == text(model(PROMPT, max_tokens=n, temperature=0))
    assert seen == [(np.intc, 5 + i, (1536,)) for i in range(n + 1)]
    streamed = list(model(PROMPT, max_tokens=30, temperature=0, stopping_criteria=criteria, stream=True))
    assert "".join(text(chunk) for chunk in streamed) == text(answer)


def test_criteria_that_are_not_met(model):
    def never(input_ids, scores):
        return False

    chunks = list(model(PROMPT, max_tokens=6, temperature=0, stopping_criteria=never, stream=True))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert "".join(map(text, chunks)) == text(model(PROMPT, max_tokens=6, temperature=0))


def test_logits_processors(model):
    first = model.tokenize(text(model(PROMPT, max_tokens=1, temperature=0)).encode(), add_bos=False)[0]

    def ban(input_ids, scores):
        scores = scores.copy()
        scores[first] = -np.inf
        return scores

    processors = llama_cpp.LogitsProcessorList([ban])
    answer = model(PROMPT, max_tokens=4, temperature=0, logits_processor=processors)
    assert text(answer) == text(model(PROMPT, max_tokens=4, temperature=0, logit_bias={first: -np.inf}))
    eos = llama_cpp.LogitsProcessorList([llama_cpp.MinTokensLogitsProcessor(5, model.token_eos())])
    assert model(PROMPT, max_tokens=6, logits_processor=eos)["usage"]["completion_tokens"] >= 5


def test_grammars(model, tmp_path):
    path = tmp_path / "yes.gbnf"
    path.write_text('root ::= "yes" | "no"')
    for grammar in (llama_cpp.LlamaGrammar.from_file(path), llama_cpp.LlamaGrammar.from_string(path.read_text())):
        assert text(model(PROMPT, grammar=grammar)) in ("yes", "no")
    schema = json.dumps({"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]})
    answer = text(model(PROMPT, max_tokens=40, grammar=llama_cpp.LlamaGrammar.from_json_schema(schema)))
    assert json.loads(answer)["n"] in (True, False)
    with pytest.raises(GrammarError):
        llama_cpp.LlamaGrammar.from_string("root ::= (")


def test_lists_of_prompts_are_one_answer(model):
    prompts = [PROMPT, "The cat", "A bear"]
    answer = model(prompts, max_tokens=6, temperature=0)
    assert [c["text"] for c in answer["choices"]] == [text(model(p, max_tokens=6, temperature=0)) for p in prompts]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 18


def test_seeds_follow_from_the_one_before(model):
    model.set_seed(11)
    first = [text(model(PROMPT, max_tokens=12)) for _ in range(3)]
    assert len(set(first)) > 1
    model.set_seed(11)
    assert [text(model(PROMPT, max_tokens=12)) for _ in range(3)] == first


def test_max_tokens_ends_with_the_context(model):
    prompt = model.tokenize(PROMPT.encode()) * 50
    answer = model(prompt, max_tokens=None, temperature=0, logit_bias={model.token_eos(): -1e9, 5: -1e9})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == model.n_ctx()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logprobs": -1}, "logprobs must be from"),
        ({"stop": [""]}, "stop must hold"),
        ({"max_tokens": "x"}, "max_tokens must be"),
        ({"grammar": "root"}, "grammar must be a LlamaGrammar"),
        ({"logit_bias": 3}, "logit_bias must map"),
        ({"suffix": 3}, "suffix must be"),
        ({"echo": 1}, "echo must be"),
        ({"stream": "yes"}, "stream must be"),
        ({"repeat_penalty": -1}, "^repeat_penalty must be"),
        ({"top_p": 3}, "^top_p must be"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"mirostat_mode": 3}, "mirostat_mode must be"),
        ({"logits_processor": 3}, "logits_processor must be"),
        ({"stopping_criteria": 3}, "stopping_criteria must be"),
        ({"seed": 1.5}, "seed must be"),
    ],
)
def test_wrong_options_are_named(model, options, message):
    with pytest.raises(ConfigError, match=message):
        model(PROMPT, **options)


@pytest.mark.parametrize("suffix_first", [False, True])
def test_suffixes(model, suffix_first):
    with pytest.raises(UnsupportedModelError, match="suffix must be None: the model's file names no"):
        model(PROMPT, suffix=" the end")
    marks = {f"tokenizer.ggml.fim_{name}_token_id": 2 + i for i, name in enumerate(("pre", "suf", "mid"))}
    with llama_cpp.Llama(shipped_model(), kv_overrides=marks, spm_infill=suffix_first) as other:
        answer = other(PROMPT, suffix=" the end", max_tokens=8, temperature=0)
        expected = other.engine.infill(PROMPT, " the end", suffix_first=suffix_first, max_tokens=8, temperature=0)
    assert text(answer) == expected.text
    assert answer["usage"]["prompt_tokens"] == expected.prompt_tokens


def test_refusals_of_calls(model):
    with pytest.raises(TypeError, match="beam"):
        model(PROMPT, beam=3)
    with pytest.raises(ContextOverflowError, match="exceed context window of 256"):
        model([449] * 256)
    with pytest.raises(ConfigError, match="stream must be False"):
        model([PROMPT, PROMPT], stream=True)
    with llama_cpp.Llama(shipped_model()) as other, pytest.raises(ValueError, match="logits_all=False"):
        other(PROMPT, logprobs=1)


@pytest.mark.parametrize("draft", [llama_cpp.llama_speculative.LlamaPromptLookupDecoding(), None])
def test_drafts_change_no_text(model, draft):
    class Repeats(llama_cpp.LlamaDraftModel):
        def __call__(self, input_ids, /, **kwargs):
            return input_ids[-3:]

    with llama_cpp.Llama(shipped_model(), n_ctx=256, draft_model=draft or Repeats()) as other:
        assert text(other(PROMPT, max_tokens=40, temperature=0)) == text(model(PROMPT, max_tokens=40, temperature=0))


def test_threads_share_one_model(model):
    def run(i):
        return text(model(f"Story {i}:", max_tokens=20, temperature=0.8, seed=i))

    def chat(i):
        messages = [{"role": "user", "content": f"Story {i}"}]
        return model.create_chat_completion(messages, max_tokens=9, seed=i)["choices"]

    def drawn(i):
        """The one sequence, whose state is whole in any case."""
        model.eval([449 + i])
        state = model.save_state()
        return state.scores.shape == (state.n_tokens, 1536), state.n_tokens == np.count_nonzero(state.input_ids)

    model.reset()
    model.input_ids[:] = 0
    alone = [call(i) for i in range(8) for call in (run, chat, drawn)]
    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(call, i) for i in range(8) for call in (run, chat, drawn)]
        assert [one.result() for one in running] == alone


def test_stop_strings_that_are_control_tokens(model, engine):
    stop, (token,) = "<|user|>", engine.tokenize("<|user|>", add_special=False, parse_special=True)
    options = {"max_tokens": 24, "seed": 1, "logit_bias": {token: 12.0}}
    alone = text(model(PROMPT, **options))
    ended = model(PROMPT, stop=[stop], **options)
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert alone.startswith(text(ended))
    *_, last = model(PROMPT, stop=stop, stream=True, **options)
    assert last["choices"][0]["finish_reason"] == "stop"
