"""oxillama runs language models in GGUF files on CPUs.

>>> import oxillama as ox
>>> engine = ox.load()  # the small model that ships with the package; or a path
>>> print(engine.generate("Once upon a time", max_tokens=64, seed=1))
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any, Unpack

from oxillama._util import fork as _fork  # noqa: F401  # first: before a fork, imports of other threads finish
from oxillama._util.blas import install_guard
from oxillama._util.lazy import give_names
from oxillama._util.version import __version__ as __version__
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
    PackedFileError,
    PickleError,
    QuantError,
    QueueFullError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFileError,
    SnapshotFormatError,
    SnapshotMismatchError,
    TemplateVariableError,
    ThreadStartError,
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
    from oxillama.chat import ChatTemplate
    from oxillama.chat.calls import BrokenToolCall, ToolCall
    from oxillama.chat.dispatch import ToolDispatcher, ToolFunctions, ToolResult
    from oxillama.chat.format import ChatFormat
    from oxillama.chat.message import ChatDelta, ChatMessage, ToolCallDelta
    from oxillama.chat.parser import ChatParser
    from oxillama.chat.shapes import ReasoningFormat
    from oxillama.chat.tool_format import ToolFormat
    from oxillama.core.answer_options import ToolUse
    from oxillama.core.beam_search import BeamSearchConfig
    from oxillama.core.loading import shipped_draft
    from oxillama.core.ranking import RankedDocument
    from oxillama.core.results import (
        BatchFailure,
        BeamHypothesis,
        CancelToken,
        Chunk,
        Completion,
        Timings,
        TokenLogprob,
        Usage,
    )
    from oxillama.core.scoring import ContinuationScore, Perplexity
    from oxillama.core.session import Session
    from oxillama.drafts.draft import Draft, DraftTask, Proposal, SpecStats
    from oxillama.drafts.grammar_draft import GrammarDraft
    from oxillama.drafts.prompt_lookup import PromptLookup
    from oxillama.engine import Engine
    from oxillama.engine.async_engine import AsyncEngine
    from oxillama.engine.draft_selection import DraftSelection, select_draft
    from oxillama.engine.functions import from_hub
    from oxillama.engine.speculative_engine import SpeculativeEngine
    from oxillama.grammar import Grammar, GrammarState, Vocabulary, apply_grammar_mask
    from oxillama.grammar.json_schema import JsonSchemaCompiler
    from oxillama.kernels import show_config
    from oxillama.lora import Lora
    from oxillama.lora.merging import merge_lora
    from oxillama.metrics import MetricsSnapshot
    from oxillama.sampling import Distribution, Sampler, SamplerChain
    from oxillama.scheduling.pools import KvCachePool, SequencePool
    from oxillama.scheduling.prefix_cache import PrefixKvCache
    from oxillama.scheduling.scheduler import Scheduler
    from oxillama.scheduling.sequence import Sequence, SequenceState
    from oxillama.speculative.async_draft import SpeculativeDecoder
    from oxillama.speculative.draft_model import DraftModel
    from oxillama.speculative.synthesise import synthesise_draft
    from oxillama.tokenizer import Tokenizer, TokenStream

# Without a handler of the program's own, Python would print warnings to standard error.
logging.getLogger("oxillama").addHandler(logging.NullHandler())
install_guard()

__all__ = [
    "AsyncEngine",
    "BatchFailure",
    "BeamHypothesis",
    "BeamSearchConfig",
    "BrokenToolCall",
    "CancelToken",
    "ChatDelta",
    "ChatFormat",
    "ChatMessage",
    "ChatParser",
    "ChatTemplate",
    "ChatTemplateError",
    "Chunk",
    "Completion",
    "ConfigError",
    "ContextOverflowError",
    "ContinuationScore",
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
    "PackedFileError",
    "Perplexity",
    "PickleError",
    "PrefixKvCache",
    "PromptLookup",
    "Proposal",
    "QuantError",
    "QueueFullError",
    "RankedDocument",
    "ReasoningFormat",
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
    "TemplateVariableError",
    "ThreadStartError",
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "Tokenizer",
    "TokenizerError",
    "ToolArgumentsError",
    "ToolCall",
    "ToolCallDelta",
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
    "BrokenToolCall": "oxillama.chat.calls",
    "CancelToken": "oxillama.engine",
    "ChatDelta": "oxillama.chat.message",
    "ChatFormat": "oxillama.chat.format",
    "ChatMessage": "oxillama.chat.message",
    "ChatParser": "oxillama.chat.parser",
    "ChatTemplate": "oxillama.chat",
    "Chunk": "oxillama.engine",
    "Completion": "oxillama.engine",
    "DraftSelection": "oxillama.engine.draft_selection",
    "Distribution": "oxillama.sampling",
    "Draft": "oxillama.drafts",
    "DraftModel": "oxillama.speculative.draft_model",
    "DraftTask": "oxillama.drafts",
    "Engine": "oxillama.engine",
    "Grammar": "oxillama.sampling",
    "Lora": "oxillama.lora",
    "GrammarDraft": "oxillama.drafts",
    "GrammarState": "oxillama.sampling",
    "JsonSchemaCompiler": "oxillama.sampling",
    "KvCachePool": "oxillama.scheduling",
    "MetricsSnapshot": "oxillama.metrics",
    "PrefixKvCache": "oxillama.scheduling",
    "RankedDocument": "oxillama.core.ranking",
    "ContinuationScore": "oxillama.core.scoring",
    "Perplexity": "oxillama.core.scoring",
    "PromptLookup": "oxillama.drafts",
    "Proposal": "oxillama.drafts",
    "ReasoningFormat": "oxillama.chat.shapes",
    "Sampler": "oxillama.sampling",
    "SamplerChain": "oxillama.sampling",
    "SequencePool": "oxillama.scheduling",
    "Scheduler": "oxillama.engine",
    "Sequence": "oxillama.engine",
    "SequenceState": "oxillama.engine",
    "Session": "oxillama.engine",
    "SpecStats": "oxillama.drafts",
    "SpeculativeDecoder": "oxillama.speculative.async_draft",
    "SpeculativeEngine": "oxillama.engine.speculative_engine",
    "Timings": "oxillama.engine",
    "TokenLogprob": "oxillama.engine",
    "TokenStream": "oxillama.tokenizer",
    "Tokenizer": "oxillama.tokenizer",
    "ToolCall": "oxillama.chat.calls",
    "ToolCallDelta": "oxillama.chat.message",
    "ToolDispatcher": "oxillama.chat.dispatch",
    "ToolFormat": "oxillama.chat.tool_format",
    "ToolFunctions": "oxillama.chat.dispatch",
    "ToolResult": "oxillama.chat.dispatch",
    "ToolUse": "oxillama.core.answer_options",
    "Usage": "oxillama.engine",
    "Vocabulary": "oxillama.sampling",
    "apply_grammar_mask": "oxillama.sampling",
    "from_hub": "oxillama.engine.functions",
    "merge_lora": "oxillama.lora.merging",
    "select_draft": "oxillama.engine.draft_selection",
    "shipped_draft": "oxillama.core.loading",
    "show_config": "oxillama.kernels",
    "synthesise_draft": "oxillama.speculative.synthesise",
}
# Functions of the engine that stand beside snapshots, as those of `json` and `pickle` do.
give_names("oxillama.snapshot", ("dump", "dumps", "load", "loads"), "oxillama.engine.functions")


def load(model_path: ModelSource = None, **fields: Unpack[EngineOptions]) -> Engine:
    """Loads a model: from a path, by a name of the store or of the Hugging Face Hub (`hf:OWNER/REPO:QUANT`), from the
    bytes of a file, or the small one that ships with the package.

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
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
