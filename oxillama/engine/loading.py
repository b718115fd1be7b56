"""From settings to the parts of an engine."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import oxillama.gguf as gguf
from oxillama.config import EngineConfig, field_names
from oxillama.engine.core import RunnerLike
from oxillama.engine.runner import Runner
from oxillama.errors import ConfigError, GGUFError, LoadError
from oxillama.kernels._threads import default_num_threads
from oxillama.kv_cache.arrays import block_bytes
from oxillama.models import ModelSpec, load_model
from oxillama.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.gguf import GGUFFile

__all__ = ["DEFAULT_CONTEXT", "EngineParts", "load_parts", "make_config", "shipped_model"]

# What is trained for 128k tokens still gets a cache of ordinary size unless asked otherwise.
DEFAULT_CONTEXT = 4096
# Requests of full context length that fit the KV cache side by side when no budget is given.
DEFAULT_CONCURRENCY = 4


@dataclass
class EngineParts:
    """What an engine is made of; `load_parts` makes them of a file, and anything alike will do."""

    runner: RunnerLike
    tokenizer: Tokenizer
    spec: ModelSpec
    context_size: int
    n_blocks: int
    metadata: Mapping[str, object] = field(default_factory=dict)


def shipped_model() -> str:
    """Path of the small model that comes with the package. Raises LoadError if this installation lacks it."""
    path = str(files("oxillama") / "data" / "default.gguf")
    if not os.path.exists(path):
        raise LoadError(f"the model that ships with the package is missing ({path}); give model_path")
    return path


def load_parts(config: EngineConfig) -> EngineParts:
    """Opens, checks and loads everything that `config` names. Raises LoadError and its children, or ConfigError."""
    source = shipped_model() if config.model_path is None else config.model_path
    file = gguf.open(source, overrides=config.overrides)
    with file:  # what was taken from it stays valid
        return _load(file, config)


def _load(file: GGUFFile, config: EngineConfig) -> EngineParts:
    num_threads = config.num_threads or default_num_threads()
    # Everything that can be wrong is found before the weights are read.
    spec = ModelSpec.read(file)
    context_size = choose_context(spec, config)
    n_blocks = choose_blocks(block_bytes(spec.states, config.kv_block_size, config.kv_type), context_size, config)
    tokenizer = Tokenizer.from_gguf(file) if config.tokenizer_path is None else read_tokenizer(config.tokenizer_path)
    if tokenizer.n_vocab > spec.n_vocab:
        raise LoadError(
            f"the tokenizer has {tokenizer.n_vocab} tokens, but the model only {spec.n_vocab}: "
            f"they don't belong together{' (tokenizer_path)' if config.tokenizer_path else ''}"
        )
    return_freed_memory()
    model = load_model(file, repack=config.repack, num_threads=num_threads, context_size=context_size)
    runner = Runner(
        model,
        num_threads=num_threads,
        kv_type=config.kv_type,
        kv_block_size=config.kv_block_size,
        n_blocks=n_blocks,
    )
    return EngineParts(runner, tokenizer, spec, context_size, n_blocks, file.metadata)


def return_freed_memory() -> None:
    """To the operating system, what building a tokenizer left behind: 20 MB of a vocabulary of 128 thousand tokens.

    glibc keeps freed memory for later allocations; ours to come are too large to be made of its pieces.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of another GGUF file. Raises LoadError for anything that is not one."""
    try:
        return Tokenizer.from_gguf(path)
    except GGUFError as error:
        raise GGUFError(f"tokenizer_path must be a GGUF file (convert it with its model): {error}") from error
    except LoadError as error:
        raise type(error)(f"tokenizer_path: {error}") from error


def choose_context(spec: ModelSpec, config: EngineConfig) -> int:
    """The context size in use. Raises ConfigError if more is asked for than the model was trained for."""
    if config.context_size is None:
        return min(spec.context_length, DEFAULT_CONTEXT)
    if config.context_size > spec.context_length:
        key = f"{spec.arch}.context_length"
        raise ConfigError(
            f"context_size must be at most the {spec.context_length} tokens that the model was trained for, not "
            f"{config.context_size}; to extend it nevertheless, pass overrides={{{key!r}: {config.context_size}}}"
        )
    return config.context_size


def choose_blocks(block_bytes: int, context_size: int, config: EngineConfig) -> int:
    """Number of KV blocks. Raises ConfigError if the budget is less than one block."""
    if config.kv_budget is None:
        return DEFAULT_CONCURRENCY * -(-context_size // config.kv_block_size)
    n_blocks = config.kv_budget // block_bytes
    if not n_blocks:
        raise ConfigError(
            f"kv_budget must be at least {block_bytes} bytes, one block of {config.kv_block_size} tokens for this "
            f"model, not {config.kv_budget}"
        )
    return n_blocks


def make_config(config: EngineConfig | None, fields: Mapping[str, Any]) -> EngineConfig:
    """`config` with `fields` replaced. Raises TypeError for an unknown field, ConfigError for its value."""
    names = field_names(EngineConfig)
    for name in fields:
        if name not in names:
            raise TypeError(f"unknown engine option {name!r}; options are {', '.join(names)}")
    if config is not None and not isinstance(config, EngineConfig):
        raise ConfigError(f"config must be an EngineConfig, not {type(config).__name__}; paths go to load()")
    return replace(config or EngineConfig(), **fields)
