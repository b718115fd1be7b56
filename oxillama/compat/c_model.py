"""Functions of llama.h that tell of a model and of a context: sizes, metadata, kind."""

from __future__ import annotations

import math
from typing import Any

from oxillama.compat.c_types import copied, integer
from oxillama.compat.model import LlamaLike
from oxillama.layer_state import KvShape

__all__ = ["FUNCTIONS"]

# ---- a context: `Llama.ctx`


def llama_get_model(ctx: LlamaLike) -> LlamaLike:
    """The model of a context."""
    return ctx


def llama_n_ctx(ctx: LlamaLike) -> int:
    """Tokens that the sequence can hold."""
    return ctx.n_ctx()


def llama_n_batch(ctx: LlamaLike) -> int:
    """Tokens that a step computes at most."""
    return ctx.n_batch


def llama_n_seq_max(ctx: LlamaLike) -> int:
    """Sequences: 1."""
    return 1


def llama_n_threads(ctx: LlamaLike) -> int:
    """Threads that compute."""
    return ctx.engine.num_threads


def llama_pooling_type(ctx: Any) -> int:
    """A `LLAMA_POOLING_TYPE_…`: how `embed` pools."""
    return int(ctx.pooling_type())


def llama_synchronize(ctx: LlamaLike) -> None:
    """Does nothing: calls return when they are done."""


# ---- a model: `Llama.model`


def llama_model_n_ctx_train(model: LlamaLike) -> int:
    """Tokens that the model was trained for."""
    return int(model.metadata[f"{model.engine.model_config.arch}.context_length"])


def llama_model_n_embd(model: LlamaLike) -> int:
    """Length of a hidden state."""
    return model.engine.model_config.n_embd


def llama_model_n_layer(model: LlamaLike) -> int:
    """Layers."""
    return model.engine.model_config.n_layers


def llama_model_n_head(model: LlamaLike) -> int:
    """Heads of the first layer."""
    return model.engine.model_config.layers[0].n_heads


def llama_model_n_head_kv(model: LlamaLike) -> int:
    """Heads of the first layer's keys and values."""
    return model.engine.model_config.layers[0].n_kv_heads


def llama_model_n_swa(model: LlamaLike) -> int:
    """Tokens of the sliding window; 0 without one."""
    return max(layer.window for layer in model.engine.model_config.layers)


def llama_model_rope_freq_scale_train(model: LlamaLike) -> float:
    """1 / the factor of the file's rotary scaling."""
    rope = model.engine.model_config.rope
    return 1.0 if rope is None else 1 / rope.factor


def llama_model_n_cls_out(model: LlamaLike) -> int:
    """Outputs of the classifier; of other models 1, as there."""
    return max(1, len(model.engine.labels))


def llama_model_cls_label(model: LlamaLike, i: Any) -> bytes | None:
    """Name of an output of the classifier, if it has one."""
    labels, number = model.engine.labels, integer("i", i)
    return labels[number].encode() if 0 <= number < len(labels) else None


def llama_model_has_encoder(model: LlamaLike) -> bool:
    """Whether an encoder reads the prompt before a decoder writes."""
    return model.engine.model_config.decoder_start is not None


def llama_model_has_decoder(model: LlamaLike) -> bool:
    """Whether there is a decoder: True but for encoders alone."""
    return model.engine.model_config.causal or model.engine.model_config.denoises


def llama_model_decoder_start_token(model: LlamaLike) -> int:
    """The token with which a decoder begins after an encoder; -1 of other models."""
    start = model.engine.model_config.decoder_start
    return -1 if start is None else start


def llama_model_is_recurrent(model: LlamaLike) -> bool:
    """Whether all layers keep states of a fixed size."""
    return not any(isinstance(shape, KvShape) for layer in model.engine.model_config.states for shape in layer)


def llama_model_is_hybrid(model: Any) -> bool:
    """Whether some layers keep such states, and others keys and values."""
    return bool(model._is_hybrid)


def llama_model_is_diffusion(model: LlamaLike) -> bool:
    """Whether the model writes by denoising."""
    return model.engine.model_config.denoises


def llama_model_size(model: LlamaLike) -> int:
    """Bytes of all tensors of the file."""
    from oxillama import gguf

    with gguf.open(model.model_path) as file:
        return sum(t.nbytes for t in file.tensors.values())


def llama_model_n_params(model: LlamaLike) -> int:
    """Values of all tensors of the file."""
    from oxillama import gguf

    with gguf.open(model.model_path) as file:
        return sum(math.prod(t.shape) for t in file.tensors.values())


def llama_model_chat_template(model: LlamaLike, name: bytes | None = None) -> bytes | None:
    """A chat template of the file by its name, or the default one; None if there is none."""
    found = model.vocabulary.chat_templates.get("default" if name is None else name.decode())
    return None if found is None else found.encode()


def llama_model_desc(model: LlamaLike, buf: Any, buf_size: Any) -> int:
    """Writes the architecture and the file's name for the model to `buf`; the text's length."""
    spec = model.engine.model_config
    return copied(f"{spec.arch} {spec.name}".strip().encode(), buf, buf_size)


# ---- metadata


def llama_model_meta_count(model: LlamaLike) -> int:
    """Number of metadata values but arrays."""
    return len(model.metadata)


def llama_model_meta_val_str(model: LlamaLike, key: Any, buf: Any, buf_size: Any) -> int:
    """Writes a metadata value as text to `buf`; the text's length, -1 if there is no such key."""
    return _value(model.metadata.get(getattr(key, "value", key).decode()), buf, buf_size)


def llama_model_meta_key_by_index(model: LlamaLike, i: Any, buf: Any, buf_size: Any) -> int:
    """Writes the name of a metadata value to `buf`; its length, -1 if there are not so many."""
    return _value(_at(list(model.metadata), integer("i", i)), buf, buf_size)


def llama_model_meta_val_str_by_index(model: LlamaLike, i: Any, buf: Any, buf_size: Any) -> int:
    """Writes a metadata value as text to `buf`; its length, -1 if there are not so many."""
    return _value(_at(list(model.metadata.values()), integer("i", i)), buf, buf_size)


def _at(texts: list[str], i: int) -> str | None:
    return texts[i] if 0 <= i < len(texts) else None


def _value(text: str | None, buf: Any, buf_size: Any) -> int:
    """Result of the functions of metadata: the buffer is cleared where there is nothing."""
    length = copied(b"" if text is None else text.encode(), buf, buf_size)
    return -1 if text is None else length


FUNCTIONS = (
    llama_get_model, llama_n_ctx, llama_n_batch, llama_n_seq_max, llama_n_threads, llama_pooling_type,
    llama_synchronize, llama_model_n_ctx_train, llama_model_n_embd, llama_model_n_layer, llama_model_n_head,
    llama_model_n_head_kv, llama_model_n_swa, llama_model_rope_freq_scale_train, llama_model_n_cls_out,
    llama_model_cls_label, llama_model_has_encoder, llama_model_has_decoder, llama_model_decoder_start_token,
    llama_model_is_recurrent, llama_model_is_hybrid, llama_model_is_diffusion, llama_model_size, llama_model_n_params,
    llama_model_chat_template, llama_model_desc, llama_model_meta_count, llama_model_meta_val_str,
    llama_model_meta_key_by_index, llama_model_meta_val_str_by_index,
)  # fmt: skip
