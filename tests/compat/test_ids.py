"""Token ids of NumPy's integers, which `[*array]`, pandas and torch give, wherever ids are taken."""

import numpy as np
import pytest

import oxillama.compat as llama_cpp
from oxillama.errors import TokenizerError

IDS = [449, 456, 262, 408]
KINDS = [np.int64, np.int32, np.int16, np.uint16, np.uint64]


def ids_of(kind, ids=IDS):
    return [kind(token) for token in ids]


def text(answer):
    return [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts(model, kind):
    options = {"max_tokens": 4, "temperature": 0}
    plain = text(model(IDS, **options))
    for prompt in (ids_of(kind), tuple(ids_of(kind)), np.array(IDS, kind)):
        assert text(model(prompt, **options)) == plain
        streamed = model(prompt, stream=True, **options)
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == plain[0]
    echoed = text(model.create_completion(IDS, echo=True, logprobs=1, **options))
    assert text(model.create_completion(ids_of(kind), echo=True, logprobs=1, **options)) == echoed
    several = [IDS, IDS[:2]]
    found = text(model(several, **options))
    for prompts in (
        [ids_of(kind), ids_of(kind, IDS[:2])], (ids_of(kind), IDS[:2]), [np.array(one, kind) for one in several],
    ):  # fmt: skip
        assert text(model(prompts, **options)) == found
    assert text(model(np.array([IDS, IDS], kind), **options)) == plain * 2
    assert text(model(["Once upon", "a time"], **options)) == text(model(np.array(["Once upon", "a time"]), **options))


@pytest.mark.parametrize("kind", KINDS)
def test_sequences(model, kind):
    def after(ids, more):
        model.reset()
        tokens = model.generate(ids, temp=0)
        return next(tokens), tokens.send(more), model.n_tokens

    for more in ([9, 10], [0], []):
        expected = after(IDS, more)
        assert after(ids_of(kind), ids_of(kind, more)) == expected
        assert after(np.array(IDS, kind), np.array(more, kind)) == expected
    model.reset()
    model.eval(ids_of(kind))
    token = model.sample(temp=0)
    model.reset()
    model.eval(IDS)
    assert model.sample(temp=0) == token


@pytest.mark.parametrize("kind", KINDS)
def test_single_ids(model, kind):
    assert model.detokenize(ids_of(kind), prev_tokens=ids_of(kind)) == model.detokenize(IDS, prev_tokens=IDS)
    assert model.longest_token_prefix(ids_of(kind), IDS) == len(IDS)
    options = {"max_tokens": 2, "temperature": 0}
    biased = text(model(IDS, logit_bias={456: 50.0}, **options))
    assert biased == [" upon upon"]
    assert text(model(IDS, logit_bias={kind(456): 50.0}, **options)) == biased
    cache = llama_cpp.LlamaRAMCache()
    model.reset()
    model.eval(IDS)
    cache[ids_of(kind)] = model.save_state()
    assert IDS in cache
    assert ids_of(kind) in cache
    buffer = bytearray(16)
    size = llama_cpp.llama_cpp.llama_token_to_piece(model.vocabulary, kind(456), buffer, 16, 0, True)
    assert buffer[:size] == b" upon"


@pytest.mark.parametrize(
    "prompt",
    [
        [3.5, 4], [True, 4], [np.bool_(True)], [np.float32(3)], [4, None], np.array([1.0, 2.0]), [np.int64(-1)],
        [np.int64(1 << 40)], 5, None, [["a"], [1]], {"a": 1},
    ],
)  # fmt: skip
def test_what_is_no_prompt(model, prompt):
    with pytest.raises(TokenizerError):
        model(prompt, max_tokens=1)
