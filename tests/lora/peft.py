"""Names and factors of PEFT's adapters, for models of other implementations."""

import numpy as np

import oxillama.gguf as gguf
from tests.models.references import path_of

RNG = np.random.default_rng(5)


def shape_of(path, name):
    with gguf.open(path) as file:
        return file.tensors[name].shape


def factors(n_out, n_in, rank):
    a = (RNG.standard_normal((rank, n_in)) / np.sqrt(n_in)).astype(np.float32)
    return a, (RNG.standard_normal((n_out, rank)) / np.sqrt(rank)).astype(np.float32)


def module(name, a, b):
    return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}


def table(name, a, b):
    """``a`` has a column for each row of the table."""
    return {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b}


def in_pairs(rows, n_heads):
    """Of each head, row j * half + i goes to 2 i + j, one by one."""
    out, head = np.empty_like(rows), len(rows) // n_heads
    for h in range(n_heads):
        for j in range(2):
            for i in range(head // 2):
                out[h * head + 2 * i + j] = rows[h * head + j * (head // 2) + i]
    return out


def tied(tmp_path, deltas):
    """The tied model's file with a change of the embedding and another one of the output."""
    path, output = path_of("llama-tied-bias"), "output.weight"
    with gguf.open(path) as file:
        tensors = {name: np.array(t.dequantize(), np.float64) for name, t in file.tensors.items()}
        assert output not in tensors
        tensors[output] = tensors["token_embd.weight"]
        for name, delta in deltas.items():
            tensors[name] = tensors[name] + delta
        to = tmp_path / "untied.gguf"
        gguf.write_gguf(to, file.metadata, {name: t.astype(np.float32) for name, t in tensors.items()})
    return to
