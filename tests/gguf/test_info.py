"""The description of a file."""

import pytest

import oxillama.gguf as gguf
from oxillama.gguf.info import kv_bytes_per_token

from . import build as b


def model(**changes):
    keys = {
        "general.architecture": (b.STRING, "llama"),
        "general.name": (b.STRING, "a model"),
        "llama.block_count": (b.U32, 3),
        "llama.embedding_length": (b.U32, 64),
        "llama.feed_forward_length": (b.U32, 96),
        "llama.attention.head_count": (b.U32, 8),
        "llama.attention.head_count_kv": (b.U32, 2),
        "llama.context_length": (b.U32, 8192),
        "tokenizer.ggml.model": (b.STRING, "gpt2"),
        "tokenizer.ggml.pre": (b.STRING, "qwen2"),
        "tokenizer.ggml.bos_token_id": (b.U32, 1),
        "tokenizer.ggml.eos_token_id": (b.U32, 9),
        "tokenizer.chat_template": (b.STRING, "one\ntwo\nthree\nfour"),
        **changes,
    }
    kvs = [b.kv(k, *v) for k, v in keys.items() if v is not None]
    kvs.append(b.kv_array("tokenizer.ggml.tokens", b.STRING, ["a", "<s>", "c"]))
    infos = [b.tensor("x", [32, 40], 8, 0), b.tensor("y", [40], 0, 1376)]
    return gguf.open(b.gguf(kvs, infos, bytes(1376 + 160)))


def lines(f, **more):
    """Lines by their first words; those without are joined to the one before."""
    found, name = {}, ""
    for line in gguf.describe(f, **more).splitlines():
        name = line[:18].strip() or name
        found[name] = f"{found.get(name, '')}{line[18:]};"
    return found


def test_everything_is_told():
    found = lines(model())
    assert found["file"] == "in memory;"
    assert found["format"] == "GGUF version 3, alignment 32;"
    assert found["architecture"] == "llama;"
    assert found["name"] == "a model;"
    assert found["parameters"] == "1,320 (1.32K);"
    assert [found[k] for k in ("layers", "width", "feed forward", "context")] == ["3;", "64;", "96;", "8,192;"]
    assert found["heads"] == "8, 2 for keys and values;"
    assert found["tensors"] == "2;"
    assert found["Q8_0"].split() == ["1", "1.33", "KiB;"]
    assert found["F32"].split() == ["1", "160", "bytes;"]
    assert found["tokenizer"] == "gpt2 (qwen2), 3 tokens;"
    assert found["special"] == "BOS 1 '<s>', EOS 9 (out of range);"
    assert found["chat template"] == "18 characters, 4 lines;| one;| two;| three;| …;"
    # 3 layers * 2 heads * (8 + 8) * 2 bytes = 192 bytes a token
    assert found["memory"] == (
        "1.48 KiB for the weights;up to 768.00 KiB for the KV cache of 4,096 tokens in f16;"
        "up to 1.50 MiB for the KV cache of 8,192 tokens in f16;"
    )
    assert "18.75 KiB for the KV cache of 100 tokens" in lines(model(), context_size=100)["memory"]


def test_what_a_model_keeps_comes_before_what_metadata_suggest():
    kept = lines(model(), context_size=100, kept=(3 << 10, 5 << 20))["memory"].split(";")
    assert kept[1] == "up to 5.00 MiB for the recurrent states of a request, whatever its length"
    assert kept[2] == "up to 300.00 KiB for the KV cache of 100 tokens in f16"
    assert lines(model(), kept=(0, 1 << 10))["memory"].endswith("whatever its length;")
    assert lines(model(), kept=(0, 0))["memory"] == "1.48 KiB for the weights;"


def test_mixers_are_told():
    keys = {
        "llama.attention.kv_lora_rank": (b.U32, 512),
        "llama.attention.sliding_window": (b.U32, 4096),
        "llama.ssm.inner_size": (b.U32, 2048),
        "llama.ssm.state_size": (b.U32, 16),
        "llama.ssm.conv_kernel": (b.U32, 4),
        "llama.expert_count": (b.U32, 8),
        "llama.expert_used_count": (b.U32, 2),
        "llama.expert_shared_count": (b.U32, 1),
    }
    found = lines(model(**keys))
    assert found["latent"].startswith("512 values")
    assert [found[k] for k in ("window", "convolution", "experts")] == [
        "4,096 tokens;",
        "4 tokens;",
        "8, 2 used, 1 shared;",
    ]
    assert found["state space"] == "2,048 channels of 16 values;"
    assert lines(model(**{"llama.attention.head_count": (b.U32, 0)}))["heads"] == "none;"


def test_head_sizes_and_layers_of_the_file_count():
    keys = {"llama.attention.key_length": (b.U32, 20), "llama.attention.value_length": (b.U32, 12)}
    assert kv_bytes_per_token(model(**keys).metadata) == 3 * 2 * (20 + 12) * 2
    kvs = [
        b.kv("general.architecture", b.STRING, "m"), b.kv("m.block_count", b.U32, 3),
        b.kv("m.embedding_length", b.U32, 64),
        b.kv("m.attention.head_count", b.U32, 4), b.kv_array("m.attention.head_count_kv", b.I32, [2, 0, 1]),
    ]  # fmt: skip
    f = gguf.open(b.gguf(kvs))
    assert kv_bytes_per_token(f.metadata) == 3 * (16 + 16) * 2
    assert lines(f)["heads"] == "4, 0 to 2 for keys and values;"


def test_what_a_file_lacks_is_unknown():
    found = lines(gguf.open(b.gguf()))
    for key in ("architecture", "name", "layers", "width", "feed forward", "context"):
        assert found[key] == "unknown;"
    assert found["heads"] == "unknown, unknown for keys and values;"
    assert found["tokenizer"] == "unknown, unknown tokens;"
    assert found["chat template"] == "none;"
    assert found["memory"] == "0 bytes for the weights;KV cache: unknown;"


KEYS = [
    "general.architecture", "general.name", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
    "llama.attention.head_count", "llama.attention.head_count_kv", "llama.context_length", "tokenizer.ggml.model",
    "tokenizer.ggml.pre", "tokenizer.ggml.bos_token_id", "tokenizer.chat_template",
]  # fmt: skip


@pytest.mark.parametrize("value", [None, (b.STRING, ""), (b.I32, -1), (b.U64, 2**64 - 1), (b.F32, 0.0), (b.BOOL, 1)])
@pytest.mark.parametrize("key", KEYS)
def test_no_value_of_any_key_makes_it_fail(key, value):
    assert lines(model(**{key: value}))["format"] == "GGUF version 3, alignment 32;"


def test_texts_of_the_file_cannot_steer_a_terminal_or_forge_lines():
    evil = "x\x1b[31m\r\nlayers            99"
    f = model(
        **{
            "general.name": (b.STRING, evil),
            "tokenizer.ggml.pre": (b.STRING, evil),
            "tokenizer.chat_template": (b.STRING, evil),
        }
    )
    text = gguf.describe(f)
    assert "\x1b" not in text
    assert "\r" not in text
    assert lines(f)["layers"] == "3;"


def test_the_path_is_told(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b.small())
    with gguf.open(tmp_path / "m.gguf") as f:
        assert lines(f)["file"] == f"{tmp_path / 'm.gguf'};"


def test_how_answers_are_written():
    said = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<call>"
    said += '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</call>{% endfor %}'
    for template, words in (said + "{% endfor %}", "calls as JSON objects"), ("{% if", "not known: the chat template"):
        assert words in lines(model(**{"tokenizer.chat_template": (b.STRING, template)}))["answers"]
