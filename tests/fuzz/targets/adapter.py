"""A file or folder as an adapter: what loads applies, the same however it is asked for, and goes without a trace.

An input is a GGUF file, or a folder of PEFT: `PEFT`, the length of the configuration (u32), it, and the tensors' file.
"""

import json
import struct
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np

import oxillama as ox
from oxillama.errors import LoadError, OxiLlamaError
from tests.fuzz.mutate import BYTES, TEXT, copied_value
from tests.fuzz.target import Target, told
from tests.fuzz.targets.gguf_parts import CHANGES
from tests.fuzz.targets.json_values import put, random_value, remove, transplant
from tests.lora.files import linear_shapes, random_factors, write_adapter, write_safetensors
from tests.models.tiny import Shape, tiny
from tests.snapshot.models import tokenizer_of

FOLDER = Path(tempfile.mkdtemp(prefix="oxillama-fuzz-"))
SHAPE = Shape(n_layers=1, n_embd=8, n_heads=2, n_kv_heads=1, head_dim=4, n_ff=16, n_vocab=64, context=32)
TOKENS = [1, 5, 3, 7]
MAGIC = b"PEFT"
HF = "model.layers.0.self_attn.q_proj"
NAMES = [HF, HF.replace("q_", "v_"), "model.layers.0.mlp.down_proj", "model.embed_tokens", "lm_head"]
SETTINGS = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none", "rank_pattern": {}, "alpha_pattern": {"q_proj": 4},
    "use_rslora": True, "target_modules": ["q_proj"],
}  # fmt: skip


@cache
def engine():
    with patch("oxillama.core.loading.own_tokenizer", tokenizer_of):
        return ox.load(tiny("llama", FOLDER, SHAPE), num_threads=1)


@cache
def plain():
    return engine().forward_logits(TOKENS).copy()


@cache
def seeds():
    shapes = linear_shapes(engine().config.model_path)
    few = {name: shapes[name] for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight")}
    found = []
    for rank, chosen, dtype in ((1, shapes, np.float32), (2, few, np.float16), (3, few, np.float32)):
        path = write_adapter(FOLDER / "seed", "llama", random_factors(chosen, rank), dtype=dtype)
        found.append(path.read_bytes())
    for n, names in ((2, NAMES[:3]), (1, NAMES[:1]), (2, NAMES[1:2])):
        found.append(peft(n, names, shapes))
    return found


def peft(rank, names, shapes):
    kinds = {HF: "blk.0.attn_q.weight", NAMES[1]: "blk.0.attn_v.weight", NAMES[2]: "blk.0.ffn_down.weight"}
    tensors = {}
    for name in names:
        (a, b), key = random_factors({"x": shapes[kinds[name]]}, rank)["x"], f"base_model.model.{name}"
        tensors |= {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b.astype(np.float16)}
    write_safetensors(FOLDER / "seed", tensors, {"format": "pt"})
    return joined(json.dumps(SETTINGS | {"r": rank}).encode(), (FOLDER / "seed").read_bytes())


def joined(config, weights):
    return MAGIC + struct.pack("<I", len(config)) + config + weights


def parts(data):
    """Configuration and weights."""
    n = int.from_bytes(data[4:8], "little")
    return data[8 : 8 + n], data[8 + n :]


def put_in_place(data):
    if data[:4] != MAGIC:
        path = FOLDER / "adapter.gguf"
        path.write_bytes(data)
        return path
    folder = FOLDER / "peft"
    folder.mkdir(exist_ok=True)
    config, weights = parts(data)
    (folder / "adapter_config.json").write_bytes(config)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def run(data):
    own, path, before = engine(), put_in_place(data), plain()
    try:
        own.load_lora("x", path)
    except LoadError as error:
        found = [told(error)]
        with_it = None
    else:
        found, with_it = ["loads"], applied(own)
        own.unload_lora("x")
    assert own.loras == {}
    assert np.array_equal(own.forward_logits(TOKENS), before), "it left a trace"
    if with_it is not None:
        found += pushed(own, path, with_it)
    return found


def applied(own):
    """The logits with it: for a whole prompt, as token after token."""
    with own.session(lora="x", cache_prompt=False) as session:
        session.prefill(TOKENS[:2])
        rows = [session.forward_one(token).copy() for token in TOKENS[2:]]
    with own.session(lora="x", cache_prompt=False) as session:
        whole = session.prefill(TOKENS).copy()
    assert np.array_equal(rows[-1], whole, equal_nan=True)
    nothing = own.generate(TOKENS, max_tokens=2, lora=[("x", 0.0)], temperature=0.0, repetition_penalty=1.0)
    assert nothing.token_ids == own.generate(TOKENS, max_tokens=2, temperature=0.0, repetition_penalty=1.0).token_ids
    return whole


def pushed(own, path, wanted):
    """The same, asked for in the other way."""
    own.apply_lora(path)
    try:
        assert np.array_equal(own.forward_logits(TOKENS)[-1], wanted, equal_nan=True)
        yield "applied"
    except OxiLlamaError as error:
        yield told(error)
    finally:
        own.pop_lora()


# ---- changes of a folder


def of_config(change):
    def mutate(draw, data, other):
        if data[:4] != MAGIC:
            return data
        config, weights = parts(data)
        try:
            return joined(json.dumps(change(draw, json.loads(config))).encode(), weights)
        except (ValueError, IndexError, KeyError, TypeError):
            return joined(draw.choice(TEXT)(draw, config, other), weights)

    return mutate


def of_header(change):
    """The header of the tensors' file, with its length right again."""

    def mutate(draw, data, other):
        if data[:4] != MAGIC:
            return data
        config, weights = parts(data)
        n = int.from_bytes(weights[:8], "little")
        try:
            header = json.dumps(change(draw, json.loads(weights[8 : 8 + n]))).encode()
        except (ValueError, IndexError, KeyError, TypeError):
            header = draw.choice(TEXT)(draw, weights[8 : 8 + n], other)
        return joined(config, len(header).to_bytes(8, "little") + header + weights[8 + n :])

    return mutate


def new_value(draw, value):
    return put(draw, value, random_value(draw))


def rename(draw, value):
    """A key in the place of another."""
    words = (
        *SETTINGS,
        *NAMES,
        "lora_A",
        "lora_B",
        "lora_embedding_A",
        "modules_to_save",
        "dtype",
        "q_proj",
        "k_proj",
        "BF16",
        "F64",
    )
    text, word = json.dumps(value), draw.choice(words)
    old = draw.choice([w for w in words if w in text])
    return json.loads(text.replace(old, word, draw.choice((1, 2, -1))))


def reshape(draw, value):
    """Shape and places of tensors that still fit each other."""
    names = [name for name in value if name != "__metadata__"]
    one = value[draw.choice(names)]
    kind = draw.randrange(4)
    if kind == 0:
        one["shape"] = one["shape"][::-1]
    elif kind == 1:
        one["shape"] = [1, *one["shape"]]
    elif kind == 2:
        one["dtype"] = {"F32": "I32", "F16": "BF16"}.get(one["dtype"], "F16")
    else:
        one["shape"] = draw.choice([value[name]["shape"] for name in names])
    return value


def drop(draw, value):
    return remove(draw, value, None)


def own_part(draw, value):
    return transplant(draw, value, json.loads(json.dumps(value)))


ON_JSON = [new_value, new_value, rename, rename, drop, own_part]

TARGET = Target(
    "adapter",
    run,
    seeds,
    (*CHANGES, *map(of_config, ON_JSON), *map(of_header, [*ON_JSON, reshape, reshape]), *BYTES, copied_value),
    words=[name.encode() for name in NAMES],
    max_bytes=1 << 14,
    work=(200_000, 200),
    memory=(64 << 20, 2000),
)
