"""oxillama runs language models in GGUF files on CPUs.

>>> import oxillama as ox
>>> engine = ox.load()  # the small model that ships with the package; or a path
>>> print(engine.generate("Once upon a time", max_tokens=64, seed=1))
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any, Unpack

from oxillama import lives as _lives  # noqa: F401  # first: a fork waits for what a thread imports from here on
from oxillama.config import EngineConfig, EngineOptions, ModelSource, OffloadPolicy, RopeConfig, SamplerConfig
from oxillama.errors import (
    ChatTemplateError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    EngineClosedError,
    GenerateError,
    GGUFError,
    GrammarError,
    KvCacheFullError,
    LoadError,
    LoraError,
    MessageError,
    MissingKeyError,
    MissingTensorError,
    ModelFileError,
    ModelNotFoundError,
    OxiLlamaError,
    PickleError,
    QuantError,
    QueueFullError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFileError,
    SnapshotFormatError,
    SnapshotMismatchError,
    TokenizerError,
    ToolArgumentsError,
    ToolCallError,
    ToolError,
    ToolFailedError,
    ToolFormatError,
    UnknownToolError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from oxillama import gguf, snapshot
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
        Usage,
    )
    from oxillama.engine.async_engine import AsyncEngine
    from oxillama.engine.loading import shipped_draft
    from oxillama.engine.reranking import RankedDocument
    from oxillama.engine.tool_use import ToolUse
    from oxillama.hub import from_hub
    from oxillama.kernels import show_config
    from oxillama.kv_cache import KvCachePool, PrefixKvCache, SequencePool
    from oxillama.lora import Lora, merge_lora
    from oxillama.metrics import MetricsSnapshot
    from oxillama.sampling import (
        Distribution,
        Grammar,
        GrammarState,
        JsonSchemaCompiler,
        Sampler,
        SamplerChain,
        Vocabulary,
        apply_grammar_mask,
    )
    from oxillama.sampling.grammar.tools import (
        BrokenToolCall,
        ToolCall,
        ToolCallDetector,
        ToolDispatcher,
        ToolFormat,
        ToolFunctions,
        ToolResult,
    )
    from oxillama.speculative import Draft, DraftTask, GrammarDraft, PromptLookup, Proposal, SpecStats
    from oxillama.speculative.decoder import SpeculativeDecoder
    from oxillama.speculative.draft_model import DraftModel
    from oxillama.speculative.select import DraftSelection, select_draft
    from oxillama.speculative.speculative_engine import SpeculativeEngine
    from oxillama.speculative.synthesise import synthesise_draft
    from oxillama.tokenizer import ChatTemplate, Tokenizer, TokenStream

__version__ = "0.1.0"

# Without a handler of the program's own, Python would print warnings to standard error.
logging.getLogger("oxillama").addHandler(logging.NullHandler())

__all__ = [
    "AsyncEngine",
    "BatchFailure",
    "BeamHypothesis",
    "BeamSearchConfig",
    "BrokenToolCall",
    "CancelToken",
    "ChatTemplate",
    "ChatTemplateError",
    "Chunk",
    "Completion",
    "ConfigError",
    "ContextOverflowError",
    "DeadlineError",
    "Distribution",
    "Draft",
    "DraftModel",
    "DraftSelection",
    "DraftTask",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "GGUFError",
    "GenerateError",
    "Grammar",
    "GrammarDraft",
    "GrammarError",
    "GrammarState",
    "JsonSchemaCompiler",
    "KvCacheFullError",
    "KvCachePool",
    "LoadError",
    "Lora",
    "LoraError",
    "MessageError",
    "MetricsSnapshot",
    "MissingKeyError",
    "MissingTensorError",
    "ModelFileError",
    "ModelNotFoundError",
    "OffloadPolicy",
    "OxiLlamaError",
    "PickleError",
    "PrefixKvCache",
    "PromptLookup",
    "Proposal",
    "QuantError",
    "QueueFullError",
    "RankedDocument",
    "RopeConfig",
    "Sampler",
    "SamplerChain",
    "SamplerConfig",
    "Scheduler",
    "Sequence",
    "SequencePool",
    "SequenceState",
    "Session",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotFileError",
    "SnapshotFormatError",
    "SnapshotMismatchError",
    "SpecStats",
    "SpeculativeDecoder",
    "SpeculativeEngine",
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "Tokenizer",
    "TokenizerError",
    "ToolArgumentsError",
    "ToolCall",
    "ToolCallDetector",
    "ToolCallError",
    "ToolDispatcher",
    "ToolError",
    "ToolFailedError",
    "ToolFormat",
    "ToolFormatError",
    "ToolFunctions",
    "ToolResult",
    "ToolUse",
    "UnknownToolError",
    "UnsupportedModelError",
    "Usage",
    "Vocabulary",
    "apply_grammar_mask",
    "from_hub",
    "gguf",
    "load",
    "merge_lora",
    "select_draft",
    "shipped_draft",
    "show_config",
    "snapshot",
    "synthesise_draft",
]

# Imported when first used, so that `import oxillama` stays quick. name -> module.
_LAZY = {
    "AsyncEngine": "oxillama.engine.async_engine",
    "BatchFailure": "oxillama.engine",
    "BeamHypothesis": "oxillama.engine",
    "BeamSearchConfig": "oxillama.engine",
    "BrokenToolCall": "oxillama.sampling.grammar.tools",
    "CancelToken": "oxillama.engine",
    "ChatTemplate": "oxillama.tokenizer",
    "Chunk": "oxillama.engine",
    "Completion": "oxillama.engine",
    "DraftSelection": "oxillama.speculative.select",
    "Distribution": "oxillama.sampling",
    "Draft": "oxillama.speculative",
    "DraftModel": "oxillama.speculative.draft_model",
    "DraftTask": "oxillama.speculative",
    "Engine": "oxillama.engine",
    "Grammar": "oxillama.sampling",
    "Lora": "oxillama.lora",
    "GrammarDraft": "oxillama.speculative",
    "GrammarState": "oxillama.sampling",
    "JsonSchemaCompiler": "oxillama.sampling",
    "KvCachePool": "oxillama.kv_cache",
    "MetricsSnapshot": "oxillama.metrics",
    "PrefixKvCache": "oxillama.kv_cache",
    "RankedDocument": "oxillama.engine.reranking",
    "PromptLookup": "oxillama.speculative",
    "Proposal": "oxillama.speculative",
    "Sampler": "oxillama.sampling",
    "SamplerChain": "oxillama.sampling",
    "SequencePool": "oxillama.kv_cache",
    "Scheduler": "oxillama.engine",
    "Sequence": "oxillama.engine",
    "SequenceState": "oxillama.engine",
    "Session": "oxillama.engine",
    "SpecStats": "oxillama.speculative",
    "SpeculativeDecoder": "oxillama.speculative.decoder",
    "SpeculativeEngine": "oxillama.speculative.speculative_engine",
    "Timings": "oxillama.engine",
    "TokenLogprob": "oxillama.engine",
    "TokenStream": "oxillama.tokenizer",
    "Tokenizer": "oxillama.tokenizer",
    "ToolCall": "oxillama.sampling.grammar.tools",
    "ToolCallDetector": "oxillama.sampling.grammar.tools",
    "ToolDispatcher": "oxillama.sampling.grammar.tools",
    "ToolFormat": "oxillama.sampling.grammar.tools",
    "ToolFunctions": "oxillama.sampling.grammar.tools",
    "ToolResult": "oxillama.sampling.grammar.tools",
    "ToolUse": "oxillama.engine.tool_use",
    "Usage": "oxillama.engine",
    "Vocabulary": "oxillama.sampling",
    "apply_grammar_mask": "oxillama.sampling",
    "from_hub": "oxillama.hub",
    "merge_lora": "oxillama.lora",
    "select_draft": "oxillama.speculative.select",
    "shipped_draft": "oxillama.engine.loading",
    "show_config": "oxillama.kernels",
    "synthesise_draft": "oxillama.speculative.synthesise",
}


def load(model_path: ModelSource = None, **fields: Unpack[EngineOptions]) -> Engine:
    """Loads a model: from a path, from the bytes of a file, or the small one that ships with the package.

    `fields` are those of `EngineConfig`. Raises LoadError and its children, ConfigError, or TypeError for an unknown
    field.
    """
    from oxillama.engine import Engine

    return Engine.load(model_path, **fields)


def __getattr__(name: str) -> Any:
    if name in ("gguf", "snapshot"):
        return importlib.import_module(f"oxillama.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'oxillama' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
