"""Small encoders like BERT, with and without a head, and a vocabulary of letters for them."""

import numpy as np

import oxillama.gguf as gguf

CLS, SEP = 2, 3
TABLE = [4, 2, 0, 1, 3]
P = "tokenizer.ggml."
WORDS = [chr(c) for c in range(ord("a"), ord("z"))]
BERT = {
    P + "model": "bert",
    P + "tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{w}" for w in WORDS), *WORDS[:20]],
    P + "token_type": [3] * 5 + [1] * 45,
    P + "cls_token_id": CLS,
    P + "bos_token_id": CLS,
    P + "unknown_token_id": 1,
}
QUERY, DOCUMENTS = "a b c", ["d e", "a b", "x", "c c c c c c", "b a d"]
HEADS = {
    "both": {"cls.weight": (20, 36), "cls.bias": (20,), "cls.output.weight": (3, 20), "cls.output.bias": (3,)},
    "output": {"cls.output.weight": (1, 36), "cls.output.bias": (1,)},
    "output_of_one_row": {"cls.output.weight": (36,)},
    "dense": {"cls.weight": (2, 36)},
}  # fmt: skip


def keys_of(arch, heads, n_embd, n_ff, layers=2):
    keys = {
        "context_length": 80,
        "embedding_length": n_embd,
        "block_count": layers,
        "feed_forward_length": n_ff,
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": 1e-3,
        "attention.causal": False,
    }
    if arch == "nomic-bert":
        keys["rope.freq_base"] = 1000.0
    return {"general.architecture": arch, "tokenizer.ggml.token_type_count": 2} | {
        f"{arch}.{k}": v for k, v in keys.items()
    }


def tensors_of(arch, n_embd, n_ff, layers=2, seed=1):
    rng = np.random.default_rng(seed)
    plain = arch == "bert"
    t = {}

    def matrix(name, *dims, bias=False):
        t[name + ".weight"] = (rng.standard_normal(dims) * 1.5 / np.sqrt(dims[-1])).astype(np.float32)
        if bias:
            t[name + ".bias"] = rng.standard_normal(dims[0]).astype(np.float32)

    def norm(name):
        t[name + ".weight"] = rng.uniform(0.5, 1.5, n_embd).astype(np.float32)
        t[name + ".bias"] = rng.standard_normal(n_embd).astype(np.float32)

    matrix("token_embd", 50, n_embd)
    matrix("token_types", 2, n_embd)
    if plain:
        matrix("position_embd", 80, n_embd)
    norm("token_embd_norm")
    for p in (f"blk.{i}." for i in range(layers)):
        for name in ("attn_q", "attn_k", "attn_v") if plain else ():
            matrix(p + name, n_embd, n_embd, bias=True)
        if not plain:
            matrix(p + "attn_qkv", 3 * n_embd, n_embd)
            matrix(p + "ffn_gate", n_ff, n_embd)
        matrix(p + "attn_output", n_embd, n_embd, bias=plain)
        matrix(p + "ffn_up", n_ff, n_embd, bias=plain)
        matrix(p + "ffn_down", n_embd, n_ff, bias=plain)
        norm(p + "attn_output_norm")
        norm(p + "layer_output_norm")
    return t


def written(tmp_path, keys, tensors):
    gguf.write_gguf(tmp_path / "model.gguf", keys, tensors)
    return tmp_path / "model.gguf"


def with_head(tmp_path, arch="bert", head=HEADS["both"], **keys):
    rng = np.random.default_rng(3)
    tensors = tensors_of(arch, 36, 40)
    tensors |= {name: rng.standard_normal(dims).astype(np.float32) / 3 for name, dims in head.items()}
    metadata = keys_of(arch, 3, 36, 40) | {"tokenizer.ggml.seperator_token_id": SEP}
    return written(tmp_path, metadata | {f"{arch}.{key}": value for key, value in keys.items()}, tensors)


def changed(path, metadata, tensors=None):
    with gguf.open(path) as file:
        kept = {key: file.metadata[key] for key in file.metadata} | metadata
        found = dict(file.tensors) | (tensors or {})
        target = path.with_name("changed.gguf")
        gguf.write_gguf(target, kept, found)
    return target
