"""oxillama runs language models in GGUF files on CPUs.

>>> import oxillama as ox
>>> engine = ox.load()  # the small model that ships with the package; or a path
>>> print(engine.generate("Once upon a time", max_tokens=64, seed=1))
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any, Unpack

from oxillama.config import EngineConfig, EngineOptions, ModelSource, RopeConfig, SamplerConfig
from oxillama.errors import (
    ChatTemplateError,
    ConfigError,
    ContextOverflowError,
    EngineClosedError,
    GenerateError,
    GGUFError,
    GrammarError,
    KvCacheFullError,
    LoadError,
    MissingKeyError,
    MissingTensorError,
    ModelNotFoundError,
    OxiLlamaError,
    QuantError,
    QueueFullError,
    SnapshotError,
    TokenizerError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from oxillama import gguf
    from oxillama.engine import (
        BatchFailure,
        BeamHypothesis,
        BeamSearchConfig,
        CancelToken,
        Chunk,
        Completion,
        Engine,
        Scheduler,
        Sequence,
        SequenceState,
        Session,
        Timings,
        TokenLogprob,
    )
    from oxillama.engine.async_engine import AsyncEngine
    from oxillama.hub import from_hub
    from oxillama.kernels import show_config
    from oxillama.kv_cache import KvCachePool, PrefixKvCache, SequencePool
    from oxillama.metrics import MetricsSnapshot
    from oxillama.sampling import Grammar, Sampler, SamplerChain
    from oxillama.tokenizer import ChatTemplate, Tokenizer, TokenStream

__version__ = "0.1.0"

# Without a handler of the program's own, Python would print warnings to standard error.
logging.getLogger("oxillama").addHandler(logging.NullHandler())

__all__ = [
    "AsyncEngine",
    "BatchFailure",
    "BeamHypothesis",
    "BeamSearchConfig",
    "CancelToken",
    "ChatTemplate",
    "ChatTemplateError",
    "Chunk",
    "Completion",
    "ConfigError",
    "ContextOverflowError",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "GGUFError",
    "GenerateError",
    "Grammar",
    "GrammarError",
    "KvCacheFullError",
    "KvCachePool",
    "LoadError",
    "MetricsSnapshot",
    "MissingKeyError",
    "MissingTensorError",
    "ModelNotFoundError",
    "OxiLlamaError",
    "PrefixKvCache",
    "QuantError",
    "QueueFullError",
    "RopeConfig",
    "Sampler",
    "SamplerChain",
    "SamplerConfig",
    "Scheduler",
    "Sequence",
    "SequencePool",
    "SequenceState",
    "Session",
    "SnapshotError",
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModelError",
    "from_hub",
    "gguf",
    "load",
    "show_config",
]

# Imported when first used, so that `import oxillama` stays quick. name -> module.
_LAZY = {
    "AsyncEngine": "oxillama.engine.async_engine",
    "BatchFailure": "oxillama.engine",
    "BeamHypothesis": "oxillama.engine",
    "BeamSearchConfig": "oxillama.engine",
    "CancelToken": "oxillama.engine",
    "ChatTemplate": "oxillama.tokenizer",
    "Chunk": "oxillama.engine",
    "Completion": "oxillama.engine",
    "Engine": "oxillama.engine",
    "Grammar": "oxillama.sampling",
    "KvCachePool": "oxillama.kv_cache",
    "MetricsSnapshot": "oxillama.metrics",
    "PrefixKvCache": "oxillama.kv_cache",
    "Sampler": "oxillama.sampling",
    "SamplerChain": "oxillama.sampling",
    "SequencePool": "oxillama.kv_cache",
    "Scheduler": "oxillama.engine",
    "Sequence": "oxillama.engine",
    "SequenceState": "oxillama.engine",
    "Session": "oxillama.engine",
    "Timings": "oxillama.engine",
    "TokenLogprob": "oxillama.engine",
    "TokenStream": "oxillama.tokenizer",
    "Tokenizer": "oxillama.tokenizer",
    "from_hub": "oxillama.hub",
    "show_config": "oxillama.kernels",
}


def load(model_path: ModelSource = None, **fields: Unpack[EngineOptions]) -> Engine:
    """Loads a model: from a path, from the bytes of a file, or the small one that ships with the package.

    `fields` are those of `EngineConfig`. Raises LoadError and its children, ConfigError, or TypeError for an unknown
    field.
    """
    from oxillama.engine import Engine

    return Engine.load(model_path, **fields)


def __getattr__(name: str) -> Any:
    if name == "gguf":
        return importlib.import_module("oxillama.gguf")
    if name not in _LAZY:
        raise AttributeError(f"module 'oxillama' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
