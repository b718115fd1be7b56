"""Low-level names: constants, types, and those functions of llama.h that have an answer without llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oxillama.compat import c_decode, c_model, c_system, c_vocab
from oxillama.compat.c_types import TYPES
from oxillama.compat.c_vocab import library, llama_model_get_vocab, llama_token_to_piece
from oxillama.compat.constants import CONSTANTS

__all__ = ["ALIASES", "FUNCTIONS", "llama_model_get_vocab", "llama_token_to_piece"]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for module in (c_system, c_vocab, c_model, c_decode) for function in module.FUNCTIONS
}

# Older names, and those of the same answer.
ALIASES = {
    **{
        f"llama_token_{name}": f"llama_vocab_{name}"
        for name in ("get_text", "get_score", "get_attr", "is_eog", "is_control", "bos", "eos", "eot", "cls", "sep",
                     "nl", "pad", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
    },
    **{f"llama_add_{name}_token": f"llama_vocab_get_add_{name}" for name in ("bos", "eos")},
    **{f"llama_{name}": f"llama_model_{name}" for name in ("n_ctx_train", "n_embd", "n_layer", "n_head")},
    **{f"llama_model_n_embd_{name}": "llama_model_n_embd" for name in ("inp", "out")},
    **{f"llama_{kind}_{name}": f"llama_memory_{name}" for kind in ("kv_self", "kv_cache") for name in (
        "clear", "seq_rm", "seq_keep", "seq_pos_min", "seq_pos_max", "can_shift")},
    "llama_n_vocab": "llama_vocab_n_tokens",
    "llama_n_ctx_seq": "llama_n_ctx",
    "llama_n_ubatch": "llama_n_batch",
    "llama_n_threads_batch": "llama_n_threads",
}  # fmt: skip


def _unavailable(name: str) -> Callable[..., Any]:
    def call(*args: object, **keywords: object) -> Any:
        raise NotImplementedError(
            f"{name}() is a function of llama.cpp's C interface: use the methods of Llama instead"
        )

    call.__name__ = call.__qualname__ = name
    return call


def __getattr__(name: str) -> Any:
    for known in (CONSTANTS, TYPES, FUNCTIONS):
        if name in known:
            return known[name]
    if name in ALIASES:
        return FUNCTIONS[ALIASES[name]]
    if name == "_lib":
        return library()
    if name.startswith(("llama_", "ggml_")):
        return _unavailable(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *CONSTANTS, *TYPES, *FUNCTIONS, *ALIASES})
