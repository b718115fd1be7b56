"""From settings to the parts of an engine."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import oxillama.gguf as gguf
from oxillama.checks import check_keywords
from oxillama.config import EngineConfig, OffloadPolicy, RopeConfig, SamplerConfig, field_names
from oxillama.engine.pooling import read_pooling
from oxillama.engine.runner import Runner
from oxillama.engine.sizes import CacheSizes, choose_sizes, step_tokens
from oxillama.engine.spans import RunnerLike
from oxillama.errors import ConfigError, GGUFError, LoadError, MissingKeyError
from oxillama.gguf.pages import release_pages
from oxillama.kernels._cores import default_num_threads
from oxillama.models import ModelSpec, load_model
from oxillama.models.classifier import Classifier
from oxillama.models.weights import Weights
from oxillama.offload import LayerPager
from oxillama.sampling.file_defaults import read_sampling_defaults
from oxillama.snapshot.origin import ModelIdentity
from oxillama.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.gguf import GGUFFile
    from oxillama.models.registry import Model

__all__ = [
    "DEFAULT_CONTEXT",
    "EngineParts",
    "LoadProgress",
    "load_parts",
    "make_config",
    "shipped_draft",
    "shipped_model",
]

LoadProgress = Callable[[int, int], object]  # bytes of tensors that are loaded, bytes of all

# What is trained for 128k tokens still gets a cache of ordinary size unless asked otherwise.
DEFAULT_CONTEXT = 4096


@dataclass
class EngineParts:
    """What an engine is made of; `load_parts` makes them of a file, and anything alike will do.

    sampling: what counts for sampling options that a call doesn't give.
    identity, tokenizer_identity: of the files, for snapshots; the latter where the tokenizer is from another one.
    step_tokens: of a step at most; 0: as configured.
    """

    runner: RunnerLike
    tokenizer: Tokenizer
    spec: ModelSpec
    context_size: int
    n_blocks: int
    n_slots: int = 0
    pooling: str = "mean"
    metadata: Mapping[str, object] = field(default_factory=dict)
    n_windowed: int = 0
    window: int = 0
    classifier: Classifier | None = None
    identity: ModelIdentity | None = None
    tokenizer_identity: ModelIdentity | None = None
    step_tokens: int = 0
    sampling: SamplerConfig = field(default_factory=SamplerConfig)


def shipped_model() -> str:
    """Path of the small model that comes with the package. Raises LoadError if this installation lacks it."""
    return shipped_file("default.gguf", "give model_path")


def shipped_draft() -> str:
    """Path of the draft that comes with it: a tenth of its size, trained to guess its tokens. Raises LoadError."""
    return shipped_file("default-draft.gguf", "give the path of another draft, or synthesise_draft() one")


def shipped_file(name: str, remedy: str) -> str:
    path = str(files("oxillama") / "data" / name)
    if not os.path.exists(path):
        raise LoadError(f"the model that ships with the package is missing ({path}); {remedy}")
    return path


def load_parts(config: EngineConfig, progress: LoadProgress | None = None) -> EngineParts:
    """Opens, checks and loads everything that `config` names. Raises LoadError and its children, or ConfigError.

    progress: called after each tensor that is rewritten for the kernels; what it raises ends the loading.
    """
    source = shipped_model() if config.model_path is None else config.model_path
    file = gguf.open(source, overrides=config.overrides)
    with file:  # what was taken from it stays valid
        return _load(file, config, progress)


def _load(file: GGUFFile, config: EngineConfig, progress: LoadProgress | None) -> EngineParts:
    num_threads = config.num_threads or default_num_threads()
    # Everything that can be wrong is found before the weights are read.
    if isinstance(config.rope, RopeConfig):
        file.override(config.rope.metadata(file.metadata.arch))
    spec = ModelSpec.read(file)
    context_size = choose_context(spec, config)
    pooling = read_pooling(file.metadata)
    sampling = read_sampling_defaults(file.metadata, context_size)
    sizes = choose_sizes(spec.states, context_size, config)
    path, identity = config.tokenizer_path, ModelIdentity(file)
    tokenizer, other = (own_tokenizer(file), None) if path is None else read_tokenizer(path)
    if tokenizer.n_vocab > spec.n_vocab:
        raise LoadError(
            f"the tokenizer has {tokenizer.n_vocab} tokens, but the model only {spec.n_vocab}: "
            f"they don't belong together{' (tokenizer_path)' if config.tokenizer_path else ''}"
        )
    return_freed_memory()
    pagers: list[LayerPager] = []
    place = None
    if isinstance(config.offload, OffloadPolicy) and config.offload.active:
        place = partial(place_weights, file, config.offload, config.repack, num_threads, pagers)
    model = load_model(
        file, repack=config.repack, num_threads=num_threads, context_size=context_size, place=place,
        progress=None if progress is None else counted(progress, sum(t.nbytes for t in file.tensors.values())),
    )  # fmt: skip
    runner = make_runner(model, config, sizes, num_threads, pagers[0] if pagers else None)
    return EngineParts(
        runner, tokenizer, spec, context_size, sizes.n_blocks, sizes.n_slots, pooling, file.metadata,
        sizes.n_windowed, sizes.window, model.classifier, identity, other,
        step_tokens(spec, config.prefill_chunk_size, pagers[0].step_budget if pagers else None), sampling,
    )  # fmt: skip


def counted(progress: LoadProgress, total: int) -> Callable[[int], None]:
    """A function of the bytes of one tensor, which tells `progress` those of all so far."""
    done = 0

    def add(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        progress(done, total)

    return add


def make_runner(
    model: Model, config: EngineConfig, sizes: CacheSizes, num_threads: int, pager: LayerPager | None = None
) -> Runner:
    """What computes with a model, with a cache of its own."""
    return Runner(
        model,
        pager=pager,
        num_threads=num_threads,
        kv_type=config.kv_type,
        kv_block_size=config.kv_block_size,
        n_blocks=sizes.n_blocks,
        n_slots=sizes.n_slots,
        n_windowed=sizes.n_windowed,
    )


def place_weights(
    file: GGUFFile, policy: OffloadPolicy, repack: bool, num_threads: int, pagers: list[LayerPager], weights: Weights
) -> None:
    """Leaves weights in the file as the policy says; what reads them is added to `pagers`. Raises ConfigError."""
    if file.path is None:
        raise ConfigError("offload must be left out for a model that is in memory: give model_path as a path")
    pagers.append(LayerPager(weights, policy, repack=repack, num_threads=num_threads))
    for shard in file.shards:
        release_pages(shard.data)  # what was looked at to build the model


def return_freed_memory() -> None:
    """To the operating system, what building a tokenizer left behind: 20 MB of a vocabulary of 128 thousand tokens.

    glibc keeps freed memory for later allocations; ours to come are too large to be made of its pieces.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def own_tokenizer(file: GGUFFile) -> Tokenizer:
    """The tokenizer of the model's file. Raises LoadError for one that can't be, and if there is none."""
    if "tokenizer.ggml.model" not in file.metadata:
        raise MissingKeyError(
            f"{file.path or '<memory>'}: the file holds no tokenizer (tokenizer.ggml.model): give tokenizer_path, a "
            "GGUF file that does"
        )
    return Tokenizer.from_gguf(file)


def read_tokenizer(path: str | os.PathLike[str]) -> tuple[Tokenizer, ModelIdentity]:
    """The tokenizer of another GGUF file, which is kept open. Raises LoadError for anything that is not one."""
    try:
        with gguf.open(path) as file:
            return Tokenizer.from_gguf(file), ModelIdentity(file)
    except GGUFError as error:
        raise GGUFError(f"tokenizer_path must be a GGUF file (convert it with its model): {error}") from error
    except LoadError as error:
        raise type(error)(f"tokenizer_path: {error}") from error


def choose_context(spec: ModelSpec, config: EngineConfig) -> int:
    """The context size in use.

    Raises ConfigError if more is asked for than the model was trained for, or than `config.rope` stretches it to, and
    for a `config.rope` that a model has no use for.
    """
    if config.rope is not None and spec.rope is None:
        raise ConfigError(f"rope must be left out: architecture {spec.arch} has no rotary embedding")
    if config.context_size is None:
        return min(spec.context_length, DEFAULT_CONTEXT)
    reach = spec.rope.reach if config.rope is not None and spec.rope is not None else 0
    if reach > spec.context_length and config.context_size > reach:
        raise ConfigError(f"context_size must be at most the {reach} tokens of rope, not {config.context_size}")
    if config.context_size > max(spec.context_length, reach):
        key = f"{spec.arch}.context_length"
        raise ConfigError(
            f"context_size must be at most the {spec.context_length} tokens that the model was trained for, not "
            f"{config.context_size}; to extend it nevertheless, pass overrides={{{key!r}: {config.context_size}}}"
        )
    return config.context_size


def make_config(function: str, config: EngineConfig | None, fields: Mapping[str, Any]) -> EngineConfig:
    """`config` with `fields`, which are keywords of `function`, replaced.

    Raises TypeError for an unknown field, ConfigError for its value.
    """
    check_keywords(function, fields, field_names(EngineConfig))
    if config is not None and not isinstance(config, EngineConfig):
        raise ConfigError(f"config must be an EngineConfig, not {type(config).__name__}; paths go to load()")
    return replace(config or EngineConfig(), **fields)
