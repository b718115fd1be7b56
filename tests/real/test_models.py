"""Language models that people run: tokens, perplexity, the same bits however served, schemas, calls, and HTTP."""

import json
import os
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

import oxillama as ox
from oxillama import gguf
from oxillama.kernels import _table
from tests.models import naive
from tests.processes import ROOT
from tests.real.packages import model

pytestmark = pytest.mark.real

TEXT = (
    "The lighthouse keeper had not spoken to anyone for eleven days. Every evening at 18:40 he climbed the 214 steps, "
    "lit the lamp, and wrote one line into the log: wind, visibility, ships."
)
TEXTS = [
    TEXT, "", " ", "\n\n  \t x", "naïve café — 東京タワー 🗼 Ω≈ç√", "1234567890 3.14159 0x1F 10,000",
    "don't I'll THEY'RE", "def f(x):\n    return x ** 2  # squared\n", "a" * 300, "\u0301e\u0301 \ufeff \u200b",
    "https://example.com/?q=a&b=%20",
]  # fmt: skip
# The rules by which the models' own tokenizers cut texts, from their tokenizer.json. Qwen's composes characters (NFC)
# before; a file that doesn't say so (`normalizer.nfc`) is read as it was written.
CUTS = {
    "smollm2": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ],
    "qwen2.5-coder": [
        pre_tokenizers.Split(
            tokenizers.Regex(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+"
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["city", "days"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=sorted(CUTS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def engine(name):
    with ox.load(model(name), context_size=1024) as engine:
        yield engine


IN_A_TIER = """
import json, sys
import oxillama as ox
with ox.load(sys.argv[1], context_size=1024) as engine:
    done = engine.generate(sys.argv[2], max_tokens=int(sys.argv[3]), temperature=0.0, ignore_eos=True, logprobs=0)
    print(json.dumps([done.token_ids, [one.logprob.hex() for one in done.logprobs]]))
"""


def test_every_tier_writes_the_same(name):
    """Greedy tokens, and the bits of their log-probabilities; 300 of the smaller model."""
    n, found = 300 if name == "smollm2" else 40, {}
    for tier in _table.usable_tiers():
        env = os.environ | {"OXILLAMA_TIER": tier, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", IN_A_TIER, str(model(name)), TEXT, str(n)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found[tier] = json.loads(done.stdout)
    first, *others = found.values()
    assert len(first[0]) == n
    assert all(other == first for other in others)


def test_tokens_are_those_of_the_models_own_tokenizer(name, engine):
    with gguf.open(model(name)) as file:
        pieces = file.metadata["tokenizer.ggml.tokens"].tolist()
        merges = [tuple(merge.split(" ")) for merge in file.metadata["tokenizer.ggml.merges"].tolist()]
    twin = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    twin.pre_tokenizer = pre_tokenizers.Sequence(CUTS[name])
    twin.decoder = decoders.ByteLevel()
    for text in TEXTS:
        ids = engine.tokenizer.encode(text, add_special=False)
        assert ids == twin.encode(text).ids, text
        assert engine.detokenize(ids) == twin.decode(twin.encode(text).ids)


def test_perplexity_is_that_of_the_weights():
    """SmolLM2's, whose weights fit into memory as float64: the twin in numpy knows neither blocks nor 8-bit values."""
    with ox.load(model("smollm2"), context_size=256) as engine:
        ids = engine.tokenize(TEXT)
        ours = engine.generate(ids, max_tokens=0, prompt_logprobs=0).prompt_logprobs
    rows = naive.logits(model("smollm2"), ids)[:-1]
    rows = rows - rows.max(axis=1, keepdims=True)
    theirs = (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)))[np.arange(len(rows)), ids[1:]]
    found = np.array([one.logprob for one in ours[1:]])
    assert np.exp(-theirs[1:].mean()) < 60  # prose, and no noise; the first word may be any
    assert abs(found.mean() - theirs.mean()) < 0.02
    assert np.abs(found - theirs).max() < 0.5


def test_the_same_bits_in_any_way_of_serving(name, engine):
    options = {"max_tokens": 16, "seed": 11, "temperature": 0.9, "logprobs": 2}
    prompts = [TEXT, "def fibonacci(n):\n", "1, 2, 3,", TEXT[:40]]
    alone = [engine.generate(prompt, **options) for prompt in prompts]
    together = engine.generate(prompts, **options)
    streamed = [list(engine.stream(prompt, **options)) for prompt in prompts]
    with ox.load(model(name), context_size=1024, prefill_chunk_size=7, num_threads=1, prefix_cache=False) as other:
        chunked = other.generate(prompts, **options)
    drafted = engine.generate(prompts, **options, draft="lookup")
    for i, expected in enumerate(alone):
        for found in (together[i], chunked[i], drafted[i]):
            assert (found.text, found.token_ids, found.logprobs) == (
                expected.text,
                expected.token_ids,
                expected.logprobs,
            )
        assert "".join(chunk.text for chunk in streamed[i]) == expected.text


def test_schemas_are_followed(engine):
    message = [{"role": "user", "content": "Invent a person. Answer with JSON that has a name and an age."}]
    for seed in range(3):
        answer = engine.chat(message, json_schema=SCHEMA, seed=seed, max_tokens=80)
        found = json.loads(answer.text)
        assert set(found) == {"name", "age"}
        assert len(found["name"]) <= 20
        assert 0 <= found["age"] <= 120


def test_required_calls_have_the_arguments_of_their_schema(name, engine):
    message = [{"role": "user", "content": "How will the weather be in Lisbon for the next 3 days?"}]
    tool_format = "hermes" if name == "smollm2" else None  # whose template shows no tools
    options = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 80, "temperature": 0}
    (call,) = engine.chat(message, tool_format=tool_format, parallel_tool_calls=False, **options).tool_calls
    assert call.name == "get_weather"
    assert isinstance(call.arguments["city"], str)
    assert call.arguments["days"] in range(1, 8)
    if name == "qwen2.5-coder":
        assert call.arguments["city"].startswith("Lisbo")
        assert call.arguments["days"] == 3


def test_a_chat_over_http(name, engine):
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0}
    command = [sys.executable, "-m", "oxillama", "serve", "-m", str(model(name)), "-c", "1024", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = next(line.rsplit(" ", 1)[1].strip() for line in process.stderr if "listening on" in line)
        next(line for line in process.stderr if "loaded" in line)
        request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as response:
            found = json.load(response)
    finally:
        process.terminate()
        process.communicate()
    expected = engine.chat(body["messages"], max_tokens=12, temperature=0)
    assert found["choices"][0]["message"]["content"] == expected.text
    assert found["usage"]["completion_tokens"] == len(expected.token_ids)
