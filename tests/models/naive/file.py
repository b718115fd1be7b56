"""A GGUF file as the formulas want it: every tensor in float64, metadata with the defaults of the format."""

import numpy as np

import oxillama.gguf as gguf


class File:
    """Tensors by name and metadata without the architecture's prefix."""

    def __init__(self, path, overrides=None):
        with gguf.open(path, overrides=overrides) as file:
            self.arch = file.metadata.arch
            self.w = {name: t.dequantize().astype(np.float64) for name, t in file.tensors.items()}
            self.separator = file.metadata.get("tokenizer.ggml.seperator_token_id")
            self.metadata = {
                key: plain(file.metadata[key]) for key in file.metadata if not key.startswith("tokenizer.")
            }
        self.n_layers = self.get("block_count") - self.get("nextn_predict_layers", 0)  # which guess further ahead
        self.n_embd = self.get("embedding_length")

    def get(self, key, default=None):
        return self.metadata.get(f"{self.arch}.{key}", default)

    def linear(self, name, h):
        """h W^T + b; a bias that is not in the file is zero. Matrices stand [out, in]."""
        return h @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0.0)

    def layers(self):
        return [Layer(self, i) for i in range(self.n_layers)]


class Layer:
    """One layer's tensors (``blk.i.``) and counts."""

    def __init__(self, file, i):
        self.file, self.i = file, i
        self.heads = self.count("attention.head_count")
        self.kv_heads = self.count("attention.head_count_kv", self.heads)
        self.k_dim = file.get("attention.key_length", file.n_embd // max(self.heads, 1))
        self.v_dim = file.get("attention.value_length", file.n_embd // max(self.heads, 1))

    def __contains__(self, name):
        return f"blk.{self.i}.{name}" in self.file.w

    def __getitem__(self, name):
        return self.file.w[f"blk.{self.i}.{name}"]

    def tensor(self, name):
        return self.file.w.get(f"blk.{self.i}.{name}")

    def get(self, key, default=None):
        return self.file.get(key, default)

    def count(self, key, default=0):
        """What stands once for all layers, or as a list with one value per layer."""
        value = self.get(key, default)
        return value[self.i] if isinstance(value, list) else value

    def linear(self, name, h):
        return self.file.linear(f"blk.{self.i}.{name}", h)


def plain(value):
    return value if isinstance(value, str | int | float | bool) else list(value)
