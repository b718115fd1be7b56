"""Names of llama-cpp-python, for programs that were written for it.

>>> import oxillama.compat as llama_cpp
>>> llm = llama_cpp.Llama("model.gguf", n_ctx=2048)
>>> print(llm("Once upon a time", max_tokens=40)["choices"][0]["text"])

Everything is imported when it is first used. `install()` is for programs that import `llama_cpp` by that name.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxillama.compat.llama import (
        Llama,
        LlamaState,
        LogitsProcessor,
        LogitsProcessorList,
        MinTokensLogitsProcessor,
        StoppingCriteria,
        StoppingCriteriaList,
    )
    from oxillama.compat.llama_cache import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache
    from oxillama.compat.llama_cpp import llama_model_get_vocab, llama_token_to_piece
    from oxillama.compat.llama_grammar import LlamaGrammar
    from oxillama.compat.llama_speculative import LlamaDraftModel
    from oxillama.compat.llama_tokenizer import BaseLlamaTokenizer, LlamaHFTokenizer, LlamaTokenizer

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaHFTokenizer",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "install",
    "llama_model_get_vocab",
    "llama_token_to_piece",
]

__version__ = "0.3.36"  # of the package whose names these are

_MODULES = (
    "llama",
    "llama_cache",
    "llama_chat_format",
    "llama_cpp",
    "llama_grammar",
    "llama_speculative",
    "llama_tokenizer",
    "llama_types",
)
# Imported when first used. name -> module.
_LAZY = {
    "BaseLlamaCache": "llama_cache",
    "BaseLlamaTokenizer": "llama_tokenizer",
    "Llama": "llama",
    "LlamaCache": "llama_cache",
    "LlamaDiskCache": "llama_cache",
    "LlamaDraftModel": "llama_speculative",
    "LlamaGrammar": "llama_grammar",
    "LlamaHFTokenizer": "llama_tokenizer",
    "LlamaRAMCache": "llama_cache",
    "LlamaState": "llama",
    "LlamaTokenizer": "llama_tokenizer",
    "LogitsProcessor": "llama",
    "LogitsProcessorList": "llama",
    "MinTokensLogitsProcessor": "llama",
    "StoppingCriteria": "llama",
    "StoppingCriteriaList": "llama",
    "llama_model_get_vocab": "llama_cpp",
    "llama_token_to_piece": "llama_cpp",
}


def install() -> None:
    """Makes `import llama_cpp`, and its submodules, these modules, in this process.

    Raises ImportError if another package of that name was imported before.
    """
    known = sys.modules.get("llama_cpp")
    if known is not None and known is not sys.modules[__name__]:
        raise ImportError("llama_cpp was imported before: call oxillama.compat.install() first")
    sys.modules["llama_cpp"] = sys.modules[__name__]
    for name in _MODULES:
        sys.modules[f"llama_cpp.{name}"] = importlib.import_module(f"{__name__}.{name}")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    elif name.startswith(("LLAMA_", "GGML_", "llama_", "ggml_")):
        value = getattr(importlib.import_module(f"{__name__}.llama_cpp"), name)
    else:
        types = importlib.import_module(f"{__name__}.llama_types") if name[:1].isupper() else None
        if not hasattr(types, name):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(types, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
