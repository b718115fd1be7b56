"""A file as a model: what opens is whole, copies and writes back the same, and what loads computes.

Exact as everywhere: the logits of a position are the same from one pass as token after token.
"""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.errors import OxiLlamaError
from oxillama.gguf import GGUFArray, ValueType
from oxillama.tokenizer import Tokenizer
from tests.fuzz.mutate import BYTES, copied_value
from tests.fuzz.target import Target, told
from tests.fuzz.targets.gguf_parts import CHANGES
from tests.gguf import build
from tests.models.tiny import Shape, tiny
from tests.tokenizer.build import P, by_score, byte_level

FOLDER = Path(tempfile.mkdtemp(prefix="oxillama-fuzz-"))
SHAPE = Shape(
    n_layers=1, n_embd=8, n_heads=2, n_kv_heads=1, head_dim=4, n_ff=16, n_vocab=40, context=32, n_experts=3,
    n_ssm_heads=2, ssm_dim=4, n_state=4, rank=4, n_chosen=3,
)  # fmt: skip
RECIPES = ("llama", "gemma3", "qwen2", "phi3-longrope", "mamba", "jamba", "deepseek2", "mixtral", "bert", "gpt-oss",
           "gemma4-e4b", "modern-bert", "smallthinker", "qwen35", "nanbeige", "llama4-short", "gemma3n",
           "apertus", "kimi-linear", "rwkv7", "glm-dsa", "minimax-m3", "mpt", "jais2", "baichuan",
           "bailingmoe3", "dream", "minimax-01-mixed", "t5encoder", "t5-flan", "hrm_text")  # fmt: skip
TEXT = "Once upon a time, <s>ab\x00é☃😀\n"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ bos_token }}"


def vocabulary():
    """Kinds of vocabularies that fit the tiny models' 40 tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(97, 110)), *"▁abcdehlmnoprtuw", "he", "▁t", "in"]
    tokens += [f"x{i}" for i in range(40 - len(tokens))]
    scores = [0.0] * 3 + [-float(i) for i in range(37)]
    types = [2, 3, 3] + [6] * 13 + [1] * 24
    common = {P + "tokens": tokens, P + "bos_token_id": 1, P + "eos_token_id": 2}
    llama = {P + "model": "llama", **common, P + "scores": scores, P + "token_type": types}
    bpe = {
        P + "model": "gpt2",
        P + "pre": "llama-bpe",
        **common,
        P + "merges": ["h e", "▁ t", "i n"],
        P + "token_type": types,
    }
    bert = {P + "model": "bert", **common, P + "token_type": types, P + "seperator_token_id": 2, P + "cls_token_id": 1}
    unigram = {**llama, P + "model": "t5", P + "add_space_prefix": True, P + "unknown_token_id": 0}
    rwkv = {P + "model": "rwkv", **common, P + "token_type": types}
    rwkv[P + "tokens"] = [*tokens[:16], *"abcdehlmnoprtuw ", *(f"\\x{i:02x}e" for i in range(8))]
    return llama | {P + "chat_template": TEMPLATE}, bpe, bert, unigram, rwkv


@cache
def seeds():
    found = [build.small()]
    for i, recipe in enumerate(RECIPES):
        path = tiny(recipe, FOLDER, SHAPE)
        with gguf.open(path) as file:
            metadata = (
                dict(file.metadata)
                | vocabulary()[{"bert": 2, "t5encoder": 3, "t5-flan": 3, "rwkv7": 4}.get(recipe, i % 4)]
            )
            tensors = {name: np.array(t.dequantize()) for name, t in file.tensors.items()}
        gguf.write_gguf(path, metadata, tensors)
        found.append(path.read_bytes())
        path.unlink()
    for metadata in (byte_level(["a b", "ab a"], ("<s>",)), by_score(["ab", "▁a"], [-1.0, -2.0])):
        gguf.write_gguf(FOLDER / "vocabulary", metadata, {})
        found.append((FOLDER / "vocabulary").read_bytes())
    return found


def run(data):
    path = FOLDER / "model.gguf"
    try:
        file = gguf.open(data)
    except ox.LoadError as error:
        return [told(error)]
    with file:
        found = [*looked_at(file), *written(file, data), *tokenized(file)]
    path.write_bytes(data)
    return [*found, *computed(path)]


def looked_at(file):
    """Everything in it can be read, and has the size that it is said to have."""
    assert isinstance(gguf.describe(file), str)
    for value in file.metadata.values():
        if isinstance(value, GGUFArray) and value.item_type is not ValueType.STRING:
            assert value.numpy().size == len(value)
        elif isinstance(value, GGUFArray):
            assert len(value.bytes_list()) == len(value)
            try:
                assert [text.encode() for text in value.tolist()] == value.bytes_list()
            except ox.GGUFError as error:
                yield told(error)
    for tensor in file.tensors.values():
        assert len(tensor.data.tobytes()) == tensor.nbytes
        try:
            if tensor.n_values < 1 << 20:
                assert tensor.dequantize().shape == tensor.shape
        except ox.QuantError as error:
            yield told(error)


def written(file, data):
    """A copy is the same byte for byte; what is written from the parts holds the same parts."""
    path = FOLDER / "written.gguf"
    try:
        gguf.copy(file, path)
        assert path.read_bytes() == data
        gguf.write_gguf(path, file.metadata, file.tensors)
    except OxiLlamaError as error:
        yield told(error)
        return
    with gguf.open(path) as again:
        assert list(again.metadata) == list(file.metadata)
        for key in file.metadata:
            a, b = again.metadata.entry(key), file.metadata.entry(key)
            assert (a.type, bytes(a.raw)) == (b.type, bytes(b.raw))
        assert list(again.tensors) == list(file.tensors)
        for name, tensor in file.tensors.items():
            other = again.tensors[name]
            assert (other.shape, other.type_id, other.data.tobytes()) == (
                tensor.shape,
                tensor.type_id,
                tensor.data.tobytes(),
            )


def tokenized(file):
    """A vocabulary gives ids that it has, and their bytes; a chat template a text."""
    try:
        tokenizer = Tokenizer.from_gguf(file)
        for special in (False, True):
            ids = tokenizer.encode(TEXT, parse_special=special)
            assert all(0 <= token < tokenizer.n_vocab for token in ids)
            assert tokenizer.decode_bytes(ids, continuation=True) == b"".join(map(tokenizer.token_bytes, ids))
            stream = tokenizer.stream()
            assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids, continuation=True)
            tokenizer.decode(ids, skip_special=True)
        if tokenizer.chat_template is not None:
            tokenizer.template().render([{"role": "user", "content": "hi"}])
    except OxiLlamaError as error:
        yield told(error)


def computed(path):
    """A model that loads computes, the same in one pass as token after token, or says why it can't."""
    try:
        engine = ox.load(path, num_threads=1, context_size=32)
    except OxiLlamaError as error:
        yield told(error)
        return
    with engine:
        tokens = [token % engine.n_vocab for token in (1, 5, 3, 7)]
        try:
            if not engine.model_config.causal:
                engine.embed(tokens)
                if engine.model_config.denoises:
                    assert engine.forward_logits(tokens).shape == (4, engine.n_vocab)
                    engine.diffuse(tokens, max_tokens=3, mask_token=2, seed=1, temperature=1.0)
                return
            if engine.model_config.decoder_start is not None:
                whole = engine.forward_logits(tokens, decoder_tokens=tokens)
                assert whole.shape == (4, engine.n_vocab)
                if np.isfinite(whole).all():
                    assert np.array_equal(engine.forward_logits(tokens, decoder_tokens=tokens[:2]), whole[:2])
                engine.generate(tokens, max_tokens=3, seed=1)
                engine.embed(tokens)
                return
            whole = engine.forward_logits(tokens)
            assert whole.shape == (4, engine.n_vocab)
            engine.prefill(tokens[:2])
            rows = [engine.forward_one(token).copy() for token in tokens[2:]]
            if np.isfinite(whole).all():
                assert np.array_equal(np.stack(rows), whole[2:])
            engine.generate(tokens, max_tokens=3, seed=1)
        except OxiLlamaError as error:
            yield told(error)


TARGET = Target(
    "gguf",
    run,
    seeds,
    (*CHANGES, *CHANGES, *BYTES, copied_value),
    words=[recipe.encode() for recipe in RECIPES],
    max_bytes=1 << 15,
    work=(300_000, 400),
    memory=(96 << 20, 4000),
)
