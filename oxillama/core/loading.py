"""Loading: a model file, cache sizes and a runner, as the parts of an engine."""

from __future__ import annotations

# Its hooks for forks take a lock before and release it after. A fork imports the rest of this package, and with it this
# module, in a hook of its own (`_util/fork.py`): first imported there, it would only release.
import concurrent.futures.thread  # noqa: F401
import ctypes
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import oxillama.gguf as gguf
from oxillama._util.checks import check_keywords, given_of
from oxillama.config import EngineConfig, OffloadPolicy, RopeConfig, SamplerConfig, field_names
from oxillama.core.context import EngineContext
from oxillama.core.embedding import read_pooling
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import ServingOptions
from oxillama.core.request import SnapshotProtocol
from oxillama.core.request_factory import RequestFactory
from oxillama.core.runner import Runner, RunnerProtocol
from oxillama.core.session import Session
from oxillama.errors import ConfigError, GGUFError, LoadError, MissingKeyError
from oxillama.gguf.fingerprint import ModelIdentity
from oxillama.gguf.pages import release_pages
from oxillama.gguf.source import FileSource
from oxillama.kernels._cores import default_num_threads
from oxillama.kv_cache.arrays import block_bytes, slot_bytes
from oxillama.layer_state import LayerShape, largest_window
from oxillama.lora import LoraRegistry
from oxillama.models import ModelSpec, load_model
from oxillama.models.classifier import Classifier
from oxillama.models.packed import find_packed, place_packed
from oxillama.models.registry import read_model_spec
from oxillama.models.weights import COMMON, Weights, counted
from oxillama.offload import LayerPager
from oxillama.sampling.file_defaults import read_sampling_defaults
from oxillama.scheduling.block_manager import n_alive
from oxillama.scheduling.pools import MAX_CHECKPOINTS, RUNNING_SLOTS, SequencePool
from oxillama.scheduling.scheduler import MAX_RUNNING
from oxillama.scheduling.sequence import SourceLayout
from oxillama.store.resolve import find_model
from oxillama.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.gguf import GGUFFile
    from oxillama.models.registry import Model

log = logging.getLogger("oxillama")

__all__ = [
    "DEFAULT_CONTEXT",
    "OF_USE",
    "CacheSizes",
    "EngineParts",
    "LoadProgress",
    "choose_sizes",
    "config_beside",
    "kept_bytes",
    "load_parts",
    "located",
    "make_config",
    "make_context",
    "parts_beside",
    "shipped_draft",
    "shipped_model",
    "step_tokens",
]

# Requests of full context length that fit the KV cache side by side when no budget is given, at least.
DEFAULT_CONCURRENCY = 4
# What is trained for 128k tokens still gets a cache of ordinary size unless asked otherwise.
DEFAULT_CONTEXT = 4096
# Recurrent slots for each of these: what it needs to run, and places to come back to.
REQUEST_SLOTS = RUNNING_SLOTS + MAX_CHECKPOINTS
# More slots than those of all sequences that can run at once are never needed, whatever the budget.
MAX_SLOTS = MAX_RUNNING * REQUEST_SLOTS

MAX_BLOCKS = (1 << 31) - 1  # ids of a kind

# Of a model whose weights are repacked, from which the log says that there are packed files.
SUGGESTED_BYTES = 1 << 30

# Part of the memory for weights that the forward pass may take beside, and tokens of a step in any case: of fewer each
# would have all weights read for itself.
FORWARD_PART = 16
LEAST_STEP = 64
# Bytes of the rows of logits of one step, where all rows of prompts are wanted: these are handed over in as many steps
# as it takes, so that they are not held twice.
ROW_BYTES = 32 << 20


class CacheSizes(NamedTuple):
    """Numbers of KV blocks and recurrent slots; 0 of what the model has no layers for.

    n_windowed: blocks of layers that see no more than `window` tokens; 0 if these have the others' blocks.
    """

    n_blocks: int
    n_slots: int
    n_windowed: int = 0
    window: int = 0


def choose_sizes(states: Sequence[LayerShape], context_size: int, config: EngineConfig) -> CacheSizes:
    """Numbers of blocks of each kind that requests of a whole context need, in proportion.

    A budget is divided as the default is: blocks for a whole context to `REQUEST_SLOTS` slots, and of layers with a
    window what a step can read. Raises ConfigError if it is less than the least that any request needs.
    """
    need, least, sizes = _request_needs(states, context_size, config)
    if config.kv_budget is None or not any(sizes):
        return _sizes(states, [_n_requests(context_size, sizes[2]) * n for n in need])
    least_bytes = sum(n * size for n, size in zip(least, sizes, strict=True))
    if config.kv_budget < least_bytes:
        tokens = f"one block of {config.kv_block_size} tokens"
        parts = [tokens] * any(least[:2]) + ["two recurrent states"] * bool(least[2])
        raise ConfigError(
            f"kv_budget must be at least {least_bytes} bytes, {' and '.join(parts)} for this model, not "
            f"{config.kv_budget}"
        )
    numbers = _divide(config.kv_budget, need, least, sizes)
    if max(numbers) > MAX_BLOCKS:
        most = MAX_BLOCKS * min(size for size in sizes if size)
        raise ConfigError(f"kv_budget must be at most about {most} bytes for this model, not {config.kv_budget}")
    return _sizes(states, numbers)


def _n_requests(context_size: int, slot_size: int) -> int:
    """Requests that there is room for without a budget: as many as run at once, if their contexts are short.

    All of them take no more than four of `DEFAULT_CONTEXT` tokens do, since idle KV of the prefix cache fills what
    there is. Recurrent states are as large in a short context as in a long one.
    """
    if slot_size:
        return DEFAULT_CONCURRENCY
    return max(DEFAULT_CONCURRENCY, min(MAX_RUNNING, DEFAULT_CONCURRENCY * DEFAULT_CONTEXT // context_size))


def _request_needs(
    states: Sequence[LayerShape], context_size: int, config: EngineConfig
) -> tuple[list[int], list[int], list[int]]:
    """Needs in blocks, windowed blocks and slots: of a request of a whole context, of any request, and their bytes.

    A window that reaches nearly as far as a context gives nothing back: its layers are as those without.
    """
    size, kv_type, window = config.kv_block_size, config.kv_type, largest_window(states)
    blocks = -(-context_size // size)
    windowed = n_alive(window, size, config.prefill_chunk_size) + 1 if window else 0
    if 0 < windowed < blocks:
        groups = [block_bytes(states, size, kv_type, windowed=w) for w in (False, True)]
    else:
        groups = [block_bytes(states, size, kv_type), 0]
    sizes = [*groups, slot_bytes(states)]
    need = [n * (size > 0) for n, size in zip((blocks, windowed, REQUEST_SLOTS), sizes, strict=True)]
    least = [n * (size > 0) for n, size in zip((1, 1, RUNNING_SLOTS), sizes, strict=True)]
    return need, least, sizes


def _divide(budget: int, need: list[int], least: list[int], sizes: list[int]) -> list[int]:
    """Divides in proportion to the need, each at least the least; the rest goes to the kind that grows with texts."""
    whole = sum(n * size for n, size in zip(need, sizes, strict=True))
    numbers = list(least)
    left = budget - sum(n * size for n, size in zip(least, sizes, strict=True))
    for i in (2, 1, 0):  # slots, windows, blocks
        if not sizes[i]:
            continue
        more = max(0, min(budget * need[i] // whole - least[i], left // sizes[i]))
        if i == 2:
            more = min(more, MAX_SLOTS - least[i])
        if not any(sizes[:i]) and i < 2:
            more = left // sizes[i]
        numbers[i] += more
        left -= more * sizes[i]
    return numbers


def _sizes(states: Sequence[LayerShape], numbers: list[int]) -> CacheSizes:
    n_blocks, n_windowed, n_slots = numbers
    return CacheSizes(n_blocks, n_slots, n_windowed, largest_window(states) if n_windowed else 0)


def kept_bytes(states: Sequence[LayerShape]) -> tuple[int, int]:
    """State of a request in bytes: of each token in f16, and of all recurrent states together."""
    tokens = EngineConfig().kv_block_size
    return block_bytes(states, tokens, "f16") // tokens, REQUEST_SLOTS * slot_bytes(states)


def step_tokens(spec: ModelSpec, configured: int, budget: int | None) -> int:
    """Tokens of a step: as configured; fewer beside weights with a budget, so that its memory is small against that.

    A token takes floats for the residual stream, its norms and products, for queries, keys, values and what attention
    makes of them, for two hidden layers of a feed-forward part, and a quarter of all that in 8 bits. Each expert that
    it uses has hidden layers and a result of its own; recurrent mixers have about five rows of twice the width, or
    what the model says.
    """
    if budget is None:
        return configured
    heads = spec.n_heads * (spec.head_dim + spec.v_head_dim)
    hidden, experts = 2 * spec.n_ff, spec.experts
    if experts is not None:
        hidden = max(hidden, experts.n_used * (2 * experts.n_ff + spec.n_embd) + 2 * experts.n_ff_shared)
    recurrent = spec.mixer_values or (10 * spec.n_embd if slot_bytes(spec.states) else 0)
    floats = 5 * spec.n_embd + heads + spec.n_kv_heads * (spec.head_dim + spec.v_head_dim) + hidden + recurrent
    return min(configured, max(LEAST_STEP, budget // FORWARD_PART // (5 * max(floats, 1))))


def row_budget(n_vocab: int) -> int:
    """Prompt tokens of a step at most whose rows of logits are all wanted."""
    return max(LEAST_STEP, ROW_BYTES // (4 * n_vocab))


LoadProgress = Callable[[int, int], object]  # bytes of tensors that are loaded, bytes of all


@dataclass
class EngineParts:
    """Parts that an engine is made of; `load_parts` makes them of a file, and anything alike will do.

    sampling: what counts for sampling options that a call doesn't give.
    identity, tokenizer_identity: of the files, for snapshots; the latter where the tokenizer is from another one.
    step_tokens: of a step at most; 0: as configured.
    arithmetic: what the bits of logits depend on beside the file: `Weights.arithmetic`.
    """

    runner: RunnerProtocol
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
    arithmetic: str = COMMON


def shipped_model() -> str:
    """Path of the small model that comes with the package. Raises LoadError if this installation lacks it."""
    return shipped_file("default.gguf", "give model_path")


def shipped_draft() -> str:
    """Path of the draft that comes with it: a tenth of its size, trained to propose its tokens. Raises LoadError."""
    return shipped_file("default-draft.gguf", "give the path of another draft, or synthesise_draft() one")


def shipped_file(name: str, remedy: str) -> str:
    path = str(Path(__file__).parents[1] / "shipped" / name)
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
    spec = read_model_spec(file)
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
    place: Callable[[Weights], Sequence[FileSource]] | None = None
    tell = None if progress is None else counted(progress, sum(t.nbytes for t in file.tensors.values()))
    if isinstance(config.offload, OffloadPolicy) and config.offload.active:
        place = partial(page_weights, file, config, num_threads, tell, pagers)
    elif config.packed is not False:
        place = partial(place_packed, file, config.packed, num_threads, tell)
    model = load_model(
        file, repack=config.repack, portable=config.portable, num_threads=num_threads, context_size=context_size,
        place=place, progress=tell,
    )  # fmt: skip
    if config.repack and place is None:
        suggest_packing(file)
    runner = make_runner(model, config, sizes, num_threads, pagers[0] if pagers else None)
    return EngineParts(
        runner, tokenizer, spec, context_size, sizes.n_blocks, sizes.n_slots, pooling, file.metadata,
        sizes.n_windowed, sizes.window, model.classifier, identity, other,
        step_tokens(spec, config.prefill_chunk_size, pagers[0].step_budget if pagers else None), sampling,
        model.arithmetic,
    )  # fmt: skip


def suggest_packing(file: GGUFFile) -> None:
    """Logs what `packed` would save the next load of a large file. It isn't the default: that would write as much to a
    disk as the file has, unasked."""
    n_bytes = sum(t.nbytes for t in file.tensors.values())
    if file.path is not None and n_bytes >= SUGGESTED_BYTES:
        log.info(
            "%s: %.1f GB were repacked, into memory of this process alone; packed=True (--packed) keeps them in a file "
            "of that size, which later loads and other processes map",
            file.path,
            n_bytes / 1e9,
        )


def make_runner(
    model: Model, config: EngineConfig, sizes: CacheSizes, num_threads: int, pager: LayerPager | None = None
) -> Runner:
    """Makes the runner that computes with a model, with a cache of its own."""
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


def page_weights(
    file: GGUFFile,
    config: EngineConfig,
    num_threads: int,
    progress: Callable[[int], None] | None,
    pagers: list[LayerPager],
    weights: Weights,
) -> Sequence[FileSource]:
    """Leaves weights in the file, or in its packed file, as the policy says; what reads them is added to `pagers`.

    Raises ConfigError, and what `find_packed` raises.
    """
    assert isinstance(config.offload, OffloadPolicy)
    if file.path is None:
        raise ConfigError("offload must be left out for a model that is in memory: give model_path as a path")
    if config.packed is not False:
        found = find_packed(file, config.packed, num_threads, progress, weights)
        weights.move_to(found.unmap(), [entry.offset for entry in found.header.entries])
    pagers.append(LayerPager(weights, config.offload, repack=config.repack, num_threads=num_threads))
    for shard in file.shards:
        release_pages(shard.data)  # what was looked at to build the model
    return ()


def return_freed_memory() -> None:
    """Returns to the operating system what building a tokenizer left: 20 MB of a vocabulary of 128 thousand tokens.

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
    """`config` with the `fields` that are given, which are keywords of `function`, replaced.

    Raises TypeError for an unknown field, ConfigError for its value.
    """
    check_keywords(function, fields, field_names(EngineConfig))
    if config is not None and not isinstance(config, EngineConfig):
        raise ConfigError(f"config must be an EngineConfig, not {type(config).__name__}; paths go to load()")
    return replace(config or EngineConfig(), **given_of(fields))


def located(config: EngineConfig, parts: EngineParts | None = None) -> EngineConfig:
    """`config` with the files that its names of models mean, fetched if need be (`oxillama.store`); as it is where
    `parts` are used instead of loading.

    Raises ModelNotFoundError for a name of nothing, ConfigError, and LoadError for trouble with the Hub.
    """
    found: dict[str, Any] = {}
    if parts is not None:
        return config
    for name in ("model_path", "tokenizer_path"):
        given = getattr(config, name)
        if isinstance(given, str | os.PathLike):
            path = find_model(given, name)
            if path != os.fspath(given):
                found[name] = path
    return replace(config, **found) if found else config


# Settings of how a loaded model is used; the others say how it is loaded.
OF_USE = ("context_size", "num_threads", "prefill_chunk_size", "kv_type", "kv_block_size", "kv_budget", "prefix_cache")


def config_beside(loaded: EngineContext, fields: Mapping[str, Any]) -> EngineConfig:
    """The engine's settings with `fields` in place of its own. Raises ConfigError for those that loading needs."""
    loaded.core.check_generates()
    config = make_config("restore", loaded.config, fields)
    for name in given_of(fields):
        if name not in OF_USE:
            raise ConfigError(f"{name} can't be given with a loaded Engine: its model is loaded already")
    return replace(config, context_size=fields.get("context_size") or loaded.context_size)


def parts_beside(loaded: EngineContext, config: EngineConfig) -> EngineParts:
    """A runner of its own on the same weights, which stay after the engine is closed. Raises ConfigError."""
    spec, runner = loaded.spec, loaded.core.runner
    if not isinstance(runner, Runner):
        raise ConfigError("the engine has no model that another one could share")
    if config.context_size is not None and config.context_size > loaded.context_size:
        raise ConfigError(
            f"context_size must be at most the engine's {loaded.context_size}, for which its model is loaded, not "
            f"{config.context_size}"
        )
    context_size = choose_context(spec, config)
    sizes = choose_sizes(spec.states, context_size, config)
    own = make_runner(runner.model, config, sizes, config.num_threads or runner.num_threads)
    return EngineParts(
        own, loaded.tokenizer, spec, context_size, sizes.n_blocks, sizes.n_slots, loaded.pooling, loaded.metadata,
        sizes.n_windowed, sizes.window, loaded.classifier, loaded.snapshots.identity,
        loaded.snapshots.tokenizer_identity,
        step_tokens(spec, config.prefill_chunk_size, runner.pager.step_budget if runner.pager else None),
        loaded.factory.default_chain.config,
        runner.model.arithmetic,
    )  # fmt: skip


WriterFactory = Callable[[EngineCore, EngineConfig, EngineParts, LoraRegistry], SnapshotProtocol]


def make_context(config: EngineConfig, parts: EngineParts, writer: WriterFactory) -> EngineContext:
    """The core of an engine around the parts that were loaded, and what its calls need; `writer` makes its snapshots.

    Raises ConfigError for what the settings and the model don't allow together.
    """
    pool = SequencePool(parts.n_blocks, parts.n_slots, parts.n_windowed, parts.window)
    start = parts.spec.decoder_start
    core = EngineCore(
        parts.runner,
        pool,
        config.kv_block_size,
        parts.step_tokens or config.prefill_chunk_size,
        encoder="" if parts.spec.causal else parts.spec.arch,
        denoises=parts.spec.denoises,
        encoder_decoder="" if start is None else parts.spec.arch,
        prefix_cache=config.prefix_cache,
        max_waiting=config.max_queue_size,
        row_budget=row_budget(parts.spec.n_vocab),
    )
    loras = LoraRegistry(parts.spec, lambda: core.runner.adaptable)
    capacity, n_vocab, kv_type = core.scheduler.capacity, parts.spec.n_vocab, config.kv_type
    source = None if start is None else SourceLayout(start, config.kv_block_size)
    factory = RequestFactory(
        parts.tokenizer, n_vocab, parts.context_size, capacity, loras, kv_type, parts.sampling, source
    )
    snapshots = writer(core, config, parts, loras)
    return EngineContext(
        config=config,
        core=core,
        factory=factory,
        loras=loras,
        snapshots=snapshots,
        session=Session(core, factory, ServingOptions(), snapshots),
        tokenizer=parts.tokenizer,
        spec=parts.spec,
        metadata=parts.metadata,
        context_size=parts.context_size,
        pooling=parts.pooling,
        classifier=parts.classifier,
    )
