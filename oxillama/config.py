"""Engine settings: frozen dataclasses that check themselves."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypedDict

from oxillama._util.checks import MAX_CONTEXT, check_int
from oxillama._util.pickling import with_fields
from oxillama._util.places import Path, Place
from oxillama._util.settings import check_fields, setting, settings
from oxillama.errors import ConfigError
from oxillama.keywords import SamplingOptions
from oxillama.sampler_config import SamplerConfig

__all__ = [
    "MAX_CONTEXT",
    "EngineConfig",
    "EngineOptions",
    "ModelSource",
    "OffloadPolicy",
    "RopeConfig",
    "SamplerConfig",
    "SamplingOptions",
    "read_policy",
]

MAX_BYTES = 1 << 62
ModelSource = Place | None

_SOURCES = (str, os.PathLike, bytes, bytearray, memoryview)
KV_TYPES = ("f16", "f32", "q8_0", "q4_0")
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope", "dynamic")
MAX_THREADS = 1024
MAX_QUEUE = 1 << 24
PREFILL_CHUNK = 512


def _patterns(name: str, given: Any) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, list | tuple) or not all(isinstance(p, str) and p for p in patterns):
        raise ConfigError(f"{name} must be patterns of tensor names, not {given!r}")
    return tuple(patterns)


@settings("offload.")
@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """Policy of which weights stay in memory; the others are read from the model's file whenever they are multiplied.

    Results are the same bits in any case. Without a field set, all weights are in memory.

    {fields}

    Raises ConfigError, which names the field, its value and its range.
    """

    budget: int | None = setting(
        None,
        "bytes of memory that weights may take, everything that is kept of them counted: those that stay, the "
        "pages that others are read into, norms and biases. Not the KV cache and the memory of the forward pass. With "
        "`automatic`: at most so many.",
        least=1,
        most=MAX_BYTES,
    )
    pinned: tuple[str, ...] = setting(
        (),
        'patterns of tensor names, as "output.weight" or "blk.0.*" (`*` stands for anything, `?` for one '
        "character), of matrices that stay in any case. Without a budget little else does.",
        check=_patterns,
    )
    automatic: bool = setting(
        False,
        "as many bytes as the system can spare, looked at between steps: fewer when memory gets short, more "
        "when there is some again.",
    )
    reserve: int | None = setting(
        None,
        "bytes of memory that `automatic` leaves to others; default: a tenth of the memory there is.",
        most=MAX_BYTES,
    )
    direct: bool = setting(
        False,
        "read everything past the system's page cache (O_DIRECT), even what it has. Otherwise that is done with "
        "what it doesn't keep, where the file system can tell and the disk can do it, and what the cache has is taken "
        "from it.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.reserve is not None and not self.automatic:
            raise ConfigError(f"offload.reserve must be left out unless offload.automatic is set, not {self.reserve}")
        if self.direct and not self.active:
            raise ConfigError("offload.direct must be left out where nothing is offloaded: give offload.budget, too")

    @property
    def active(self) -> bool:
        """Whether any weights may be left in the file."""
        return self.budget is not None or bool(self.pinned) or self.automatic


def read_policy(given: OffloadPolicy | Mapping[str, Any] | int | None) -> OffloadPolicy | None:
    """A policy, its fields, or bytes: its budget. ConfigError for anything else."""
    if given is None or isinstance(given, OffloadPolicy):
        return given
    if isinstance(given, Mapping):
        names = [f.name for f in fields(OffloadPolicy)]
        for name in given:
            if name not in names:
                raise ConfigError(f"offload must have fields among {', '.join(names)}, not {name!r}")
        return OffloadPolicy(**given)
    if isinstance(given, bool | float | str | bytes):
        raise ConfigError(
            f"offload must be an OffloadPolicy, a mapping of its fields, or a number of bytes, not {given!r}"
        )
    return OffloadPolicy(budget=check_int("offload", given, 1, MAX_BYTES))


def field_names(config: type) -> tuple[str, ...]:
    """The names of a settings class, in order: each is a keyword of the functions that take these settings."""
    return tuple(f.name for f in fields(config))


@settings("rope.")
@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding and its scaling, in place of what a model's file says; None leaves the file's value.

    {fields}

    Raises ConfigError, which names the field, its value and its range.
    """

    scaling: str | None = setting(
        None,
        '"none", "linear", "yarn", "longrope" (with factors that the file must hold) or "dynamic", which '
        "stretches to the configured `context_size` once, at load, so that results don't depend on how far a text has "
        "come.",
        choices=ROPE_SCALINGS,
    )
    factor: float | None = setting(
        None,
        'how many times the original context "linear", "yarn" and "dynamic" stretch to; needed with these alone.',
        least=1e-3,
        most=1e6,
    )
    original_context: int | None = setting(None, "tokens that frequencies were trained for.", least=1, most=MAX_CONTEXT)
    freq_base: float | None = setting(None, "base of the frequencies.", least=1.001, most=1e12)
    window_freq_base: float | None = setting(
        None, "base of the frequencies of layers with a window, in models that have two.", least=1.001, most=1e12
    )
    attn_factor: float | None = setting(None, "multiplies cosines and sines.", least=1e-3, most=1e3)
    beta_fast: float | None = setting(
        None, 'of "yarn": turns within the original context from which a frequency is kept.', least=1e-3, most=1e6
    )
    beta_slow: float | None = setting(
        None, 'of "yarn": turns to which a frequency is interpolated.', least=1e-3, most=1e6
    )
    ext_factor: float | None = setting(None, 'of "yarn": how much of this is done.', most=1)

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.scaling in ("linear", "yarn", "dynamic")) != (self.factor is not None):
            raise ConfigError(
                f"rope.factor must be given with a rope.scaling of linear, yarn or dynamic, and with no other, "
                f"not {self.factor} with {self.scaling}"
            )
        for name in ("beta_fast", "beta_slow", "ext_factor"):
            if getattr(self, name) is not None and self.scaling not in (None, "yarn"):
                raise ConfigError(f"rope.{name} must be left out unless rope.scaling is yarn, not {self.scaling}")

    def metadata(self, arch: str) -> dict[str, object]:
        """The metadata values that say the same, by key."""
        given: dict[str, object] = {key: getattr(self, name) for name, key in _ROPE_KEYS.items()}
        if self.scaling is not None or self.factor is not None:
            given["scaling.yarn_attn_factor"] = 0.0  # the file's goes with the file's scaling
        return {f"{arch}.rope.{key}": value for key, value in given.items() if value is not None}


# The metadata keys of the fields, below "ARCHITECTURE.rope.".
_ROPE_KEYS = {
    "scaling": "scaling.type",
    "factor": "scaling.factor",
    "original_context": "scaling.original_context_length",
    "freq_base": "freq_base",
    "window_freq_base": "freq_base_swa",
    "attn_factor": "scaling.attn_factor",
    "beta_fast": "scaling.yarn_beta_fast",
    "beta_slow": "scaling.yarn_beta_slow",
    "ext_factor": "scaling.yarn_ext_factor",
}


def _source(name: str, given: Any) -> ModelSource:
    if not isinstance(given, _SOURCES):
        raise ConfigError(f"{name} must be a path, bytes or None, not {type(given).__name__}")
    return given


def _path(name: str, given: Any) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{name} must be a path or None, not {type(given).__name__}")
    return given


def _block_size(name: str, given: Any) -> int:
    size = check_int(name, given, 16, MAX_CONTEXT)
    if size not in (16, 32) and size % 64:
        raise ConfigError(f"{name} must be 16, 32 or a multiple of 64, not {size}")
    return size


def _packed(name: str, given: Any) -> bool | Path:
    if not isinstance(given, bool | str | os.PathLike):
        raise ConfigError(f"{name} must be True, False or a path, not {type(given).__name__}")
    return given


def _rope(name: str, given: Any) -> RopeConfig:
    if isinstance(given, RopeConfig):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} must be a RopeConfig or a mapping of its fields, not {type(given).__name__}")
    names = field_names(RopeConfig)
    for key in given:
        if key not in names:
            raise ConfigError(f"{name} must have fields among {', '.join(names)}, not {key!r}")
    return RopeConfig(**given)


def _overrides(name: str, given: Any) -> Mapping[str, object]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ConfigError(f"{name} must map metadata keys (str) to values, not {given!r}")
    return MappingProxyType(dict(given))


@settings()
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of loading a model. Every field is a keyword of `oxillama.load`.

    {fields}

    Raises ConfigError, which names the field, its value and its range.
    """

    model_path: ModelSource = setting(
        None,
        "a GGUF file, a name of the store or of the Hub (hf:OWNER/REPO:QUANT), the bytes of a file, or None for the "
        "model that ships with the package.",
        check=_source,
    )
    tokenizer_path: Path | None = setting(None, "another GGUF file to take the tokenizer from.", check=_path)
    context_size: int | None = setting(
        None,
        "tokens of one request, prompt and output together. None: what the model was trained for, at most 4096. "
        "More than it was trained for is refused at load, unless `rope` stretches it; see also `overrides`.",
        least=2,
        most=MAX_CONTEXT,
    )
    num_threads: int | None = setting(
        None,
        "compute threads. None: one per core that the process may use, and no more than the CPU quota of its "
        "cgroups (rounded down), OMP_NUM_THREADS and OMP_THREAD_LIMIT say; `show_config` tells which of them decided.",
        least=1,
        most=MAX_THREADS,
    )
    prefill_chunk_size: int = setting(
        PREFILL_CHUNK,
        "tokens that one step computes at most; longer prompts take several steps. It never changes a "
        "result. Beside requests that generate, a step has no more of a prompt than keeps it within twice the time of "
        "a step without and 100 ms; it bounds how long other prompts and new requests wait. Beside weights with a "
        "budget (`offload`) at most as many as keep the memory of the forward pass to about a sixteenth of that, but "
        "never fewer than 64.",
        least=1,
        most=MAX_CONTEXT,
    )
    kv_type: str = setting(
        "f16",
        'how keys and values are stored, "f16", "f32", "q8_0" (8-bit codes, half the memory of f16) or "q4_0" '
        "(4-bit codes of rotated vectors, half the memory of q8_0; it shows in the texts of small models).",
        choices=KV_TYPES,
    )
    kv_block_size: int = setting(16, "tokens of a KV block: 16, 32, or a multiple of 64.", check=_block_size)
    kv_budget: int | None = setting(
        None,
        "bytes for the KV cache and the recurrent states of all requests together. None: enough for four "
        "requests of `context_size` tokens, each with two states to run and three to come back to (eight that keep "
        "nothing); for up to 64, which is as many as run at once, of a model without such states, if they have no more "
        "than 16,384 tokens together. The system hands out pages only as they are used.",
        least=1,
        most=MAX_BYTES,
    )
    prefix_cache: bool = setting(
        True,
        "keep the KV of prompts and answers, as long as no request needs the room, for requests that begin "
        "alike. They are found to the token; for models with sliding windows or recurrent layers, in whole blocks.",
    )
    max_queue_size: int = setting(
        1 << 16,
        "requests that may wait; more are refused with QueueFullError. A list of prompts waits as a whole.",
        least=1,
        most=MAX_QUEUE,
    )
    repack: bool = setting(
        True,
        "rewrite weights on load into the layout that the kernels like best (more memory, faster). False, "
        "without `offload`: they stay mapped and take no memory of their own.",
    )
    packed: bool | Path = setting(
        False,
        "True maps repacked weights from a file in the cache, which all processes share and the first one "
        "makes; a path names one that `oxillama pack` made. It takes no memory of its own, and loads at once. With "
        "`offload`, weights are read from it.",
        check=_packed,
    )
    portable: bool = setting(
        False,
        "multiply BF16 weights as every CPU can, not by the bfloat16 instructions of some (`show_config` tells "
        "of which), so that these give the bits of the others, too; prompts take longer there. It changes nothing of "
        "other formats, whose bits are the same on every CPU.",
    )
    offload: OffloadPolicy | Mapping[str, Any] | int | None = setting(
        None,
        "an `OffloadPolicy`, its fields as a mapping, or bytes (its `budget`): how much of the weights may be in "
        "memory; the others are read from the file as they are needed. It changes no result.",
        check=lambda name, given: read_policy(given),
    )
    rope: RopeConfig | Mapping[str, Any] | None = setting(
        None,
        "a `RopeConfig`, or its fields as a mapping, that replaces what the file says about rotary embedding.",
        check=_rope,
    )
    overrides: Mapping[str, object] | None = setting(
        None, "metadata values that replace those in the file, by key.", check=_overrides
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.packed is not False and not self.repack:
            raise ConfigError("packed must be left out with repack=False: packed weights are repacked ones")

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in field_names(type(self))}
        if self.overrides is not None:
            values["overrides"] = dict(self.overrides)  # of a mapping that pickle can't write
        return with_fields, (type(self), values)


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineConfig` as keywords, without the model."""

    tokenizer_path: Path | None
    context_size: int | None
    num_threads: int | None
    prefill_chunk_size: int
    kv_type: str
    kv_block_size: int
    kv_budget: int | None
    prefix_cache: bool
    max_queue_size: int
    repack: bool
    packed: bool | Path
    portable: bool
    offload: OffloadPolicy | Mapping[str, Any] | int | None
    rope: RopeConfig | Mapping[str, Any] | None
    overrides: Mapping[str, object] | None
