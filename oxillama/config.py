"""Engine settings: frozen dataclasses that check themselves."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypedDict

from oxillama._util.checks import MAX_CONTEXT, check_bool, check_choice, check_float, check_int, suggests_fields
from oxillama._util.pickling import with_fields
from oxillama._util.places import Path, Place
from oxillama.errors import ConfigError
from oxillama.sampler_config import SamplerConfig, SamplingOptions

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


@suggests_fields
@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """Which weights stay in memory; the others are read from the model's file whenever they are multiplied.

    Results are the same bits in any case. Without a field set, all weights are in memory.

    budget: bytes of memory that weights may take, everything that is kept of them counted: those that stay, the pages
        that others are read into, norms and biases. Not the KV cache and the memory of the forward pass. With
        `automatic`: at most so many.
    pinned: patterns of tensor names, as "output.weight" or "blk.0.*" (`*` stands for anything, `?` for one character),
        of matrices that stay in any case. Without a budget little else does.
    automatic: as many bytes as the system can spare, looked at between steps: fewer when memory gets short, more when
        there is some again.
    reserve: bytes of memory that `automatic` leaves to others; default: a tenth of the memory there is.
    direct: read everything past the system's page cache (O_DIRECT), even what it has. Otherwise that is done with what
        it doesn't keep, where the file system can tell and the disk can do it, and what the cache has is taken from it.

    Raises ConfigError, which names the field, its value and its range.
    """

    budget: int | None = None
    pinned: tuple[str, ...] = ()
    automatic: bool = False
    reserve: int | None = None
    direct: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None:
            self._set("budget", check_int("offload.budget", self.budget, 1, MAX_BYTES))
        pinned = (self.pinned,) if isinstance(self.pinned, str) else self.pinned
        if not isinstance(pinned, list | tuple) or not all(isinstance(p, str) and p for p in pinned):
            raise ConfigError(f"offload.pinned must be patterns of tensor names, not {self.pinned!r}")
        self._set("pinned", tuple(pinned))
        check_bool("offload.automatic", self.automatic)
        check_bool("offload.direct", self.direct)
        if self.reserve is not None:
            self._set("reserve", check_int("offload.reserve", self.reserve, 0, MAX_BYTES))
            if not self.automatic:
                raise ConfigError(
                    f"offload.reserve must be left out unless offload.automatic is set, not {self.reserve}"
                )
        if self.direct and not self.active:
            raise ConfigError("offload.direct must be left out where nothing is offloaded: give offload.budget, too")

    @property
    def active(self) -> bool:
        """Whether any weights may be left in the file."""
        return self.budget is not None or bool(self.pinned) or self.automatic

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


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


ModelSource = Place | None

_SOURCES = (str, os.PathLike, bytes, bytearray, memoryview)
KV_TYPES = ("f16", "f32", "q8_0", "q4_0")
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope", "dynamic")
MAX_THREADS = 1024
MAX_QUEUE = 1 << 24
PREFILL_CHUNK = 512


def field_names(config: type) -> tuple[str, ...]:
    """The names of a settings class, in order: each is a keyword of the functions that take these settings."""
    return tuple(f.name for f in fields(config))


@suggests_fields
@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding and its scaling, in place of what a model's file says; None leaves the file's value.

    scaling: "none", "linear", "yarn", "longrope" (with factors that the file must hold) or "dynamic", which stretches
        to the configured `context_size` once, at load, so that results don't depend on how far a text has come.
    factor: how many times the original context "linear", "yarn" and "dynamic" stretch to; needed with these alone.
    original_context: tokens that frequencies were trained for.
    freq_base: base of the frequencies; window_freq_base that of layers with a window, in models that have two.
    attn_factor: multiplies cosines and sines.
    beta_fast, beta_slow, ext_factor: of "yarn": turns within the original context from which a frequency is kept, to
        which it is interpolated, and how much of this is done.

    Raises ConfigError, which names the field, its value and its range.
    """

    scaling: str | None = None
    factor: float | None = None
    original_context: int | None = None
    freq_base: float | None = None
    window_freq_base: float | None = None
    attn_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    ext_factor: float | None = None

    def __post_init__(self) -> None:
        if self.scaling is not None:
            check_choice("rope.scaling", self.scaling, ROPE_SCALINGS)
        if self.original_context is not None:
            check_int("rope.original_context", self.original_context, 1, MAX_CONTEXT)
        for name, (_, minimum, maximum) in _ROPE_FLOATS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_float(f"rope.{name}", getattr(self, name), minimum, maximum))
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
        names = {name: key for name, (key, _, _) in _ROPE_FLOATS.items()} | {
            "scaling": "scaling.type",
            "original_context": "scaling.original_context_length",
        }
        given = {key: getattr(self, name) for name, key in names.items()}
        if self.scaling is not None or self.factor is not None:
            given["scaling.yarn_attn_factor"] = 0.0  # the file's goes with the file's scaling
        return {f"{arch}.rope.{key}": value for key, value in given.items() if value is not None}


# Fields of RopeConfig that are floats: the metadata key, minimum, maximum.
_ROPE_FLOATS = {
    "factor": ("scaling.factor", 1e-3, 1e6),
    "freq_base": ("freq_base", 1.001, 1e12),
    "window_freq_base": ("freq_base_swa", 1.001, 1e12),
    "attn_factor": ("scaling.attn_factor", 1e-3, 1e3),
    "beta_fast": ("scaling.yarn_beta_fast", 1e-3, 1e6),
    "beta_slow": ("scaling.yarn_beta_slow", 1e-3, 1e6),
    "ext_factor": ("scaling.yarn_ext_factor", 0.0, 1.0),
}


@suggests_fields
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to load a model. Every field is a keyword of `oxillama.load`.

    model_path: a GGUF file, the bytes of one, or None for the model that ships with the package.
    tokenizer_path: another GGUF file to take the tokenizer from.
    context_size: tokens of one request, prompt and output together. None: what the model was trained for, at most
        4096. More than it was trained for is refused at load, unless `rope` stretches it; see also `overrides`.
    num_threads: compute threads. None: one per core that the process may use, and no more than the CPU quota of its
        cgroups (rounded down), OMP_NUM_THREADS and OMP_THREAD_LIMIT say; `show_config` tells which of them decided.
    prefill_chunk_size: tokens that one step computes at most; longer prompts take several steps. It never changes a
        result. Beside requests that generate, a step has no more of a prompt than keeps it within twice the time of a
        step without and 100 ms; it bounds how long other prompts and new requests wait. Beside weights with a budget
        (`offload`) at most as many as keep the memory of the forward pass to about a sixteenth of that, but never fewer
        than 64.
    kv_type: how keys and values are stored, "f16", "f32", "q8_0" (8-bit codes, half the memory of f16) or "q4_0"
        (4-bit codes of rotated vectors, half the memory of q8_0; it shows in the texts of small models).
    kv_block_size: tokens of a KV block: 16, 32, or a multiple of 64.
    kv_budget: bytes for the KV cache and the recurrent states of all requests together. None: enough for four requests
        of `context_size` tokens, each with two states to run and three to come back to (eight that keep nothing); for
        up to 64, which is as many as run at once, of a model without such states, if they have no more than 16,384
        tokens together. The system hands out pages only as they are used.
    prefix_cache: keep the KV of prompts and answers, as long as no request needs the room, for requests that begin
        alike. They are found to the token; for models with sliding windows or recurrent layers, in whole blocks.
    max_queue_size: requests that may wait; more are refused with QueueFullError. A list of prompts waits as a whole.
    repack: rewrite weights on load into the layout that the kernels like best (more memory, faster). False, without
        `offload`: they stay mapped and take no memory of their own.
    packed: True maps repacked weights from a file in the cache, which all processes share and the first one makes; a
        path names one that `oxillama pack` made. It takes no memory of its own, and loads at once. With `offload`,
        weights are read from it.
    offload: an `OffloadPolicy`, its fields as a mapping, or bytes (its `budget`): how much of the weights may be in
        memory; the others are read from the file as they are needed. It changes no result.
    rope: a `RopeConfig`, or its fields as a mapping, that replaces what the file says about rotary embedding.
    overrides: metadata values that replace those in the file, by key.

    Raises ConfigError, which names the field, its value and its range.
    """

    model_path: ModelSource = None
    tokenizer_path: Path | None = None
    context_size: int | None = None
    num_threads: int | None = None
    prefill_chunk_size: int = PREFILL_CHUNK
    kv_type: str = "f16"
    kv_block_size: int = 16
    kv_budget: int | None = None
    prefix_cache: bool = True
    max_queue_size: int = 1 << 16
    repack: bool = True
    packed: bool | Path = False
    offload: OffloadPolicy | Mapping[str, Any] | int | None = None
    rope: RopeConfig | Mapping[str, Any] | None = None
    overrides: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if self.model_path is not None and not isinstance(self.model_path, _SOURCES):
            raise ConfigError(f"model_path must be a path, bytes or None, not {type(self.model_path).__name__}")
        if self.tokenizer_path is not None and not isinstance(self.tokenizer_path, str | os.PathLike):
            raise ConfigError(f"tokenizer_path must be a path or None, not {type(self.tokenizer_path).__name__}")
        if self.context_size is not None:
            self._set("context_size", check_int("context_size", self.context_size, 2, MAX_CONTEXT))
        if self.num_threads is not None:
            self._set("num_threads", check_int("num_threads", self.num_threads, 1, MAX_THREADS))
        self._set("prefill_chunk_size", check_int("prefill_chunk_size", self.prefill_chunk_size, 1, MAX_CONTEXT))
        check_choice("kv_type", self.kv_type, KV_TYPES)
        self._set("kv_block_size", check_int("kv_block_size", self.kv_block_size, 16, MAX_CONTEXT))
        if self.kv_block_size not in (16, 32) and self.kv_block_size % 64:
            raise ConfigError(f"kv_block_size must be 16, 32 or a multiple of 64, not {self.kv_block_size}")
        if self.kv_budget is not None:
            self._set("kv_budget", check_int("kv_budget", self.kv_budget, 1, 1 << 62))
        check_bool("prefix_cache", self.prefix_cache)
        self._set("max_queue_size", check_int("max_queue_size", self.max_queue_size, 1, MAX_QUEUE))
        check_bool("repack", self.repack)
        self._set("offload", read_policy(self.offload))
        self._check_packed()
        self._check_rope()
        self._check_overrides()

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in field_names(type(self))}
        if self.overrides is not None:
            values["overrides"] = dict(self.overrides)  # of a mapping that pickle can't write
        return with_fields, (type(self), values)

    def _check_packed(self) -> None:
        if not isinstance(self.packed, bool | str | os.PathLike):
            raise ConfigError(f"packed must be True, False or a path, not {type(self.packed).__name__}")
        if isinstance(self.packed, bool) and not self.packed:
            return
        if not self.repack:
            raise ConfigError("packed must be left out with repack=False: packed weights are repacked ones")

    def _check_rope(self) -> None:
        if self.rope is None or isinstance(self.rope, RopeConfig):
            return
        if not isinstance(self.rope, Mapping):
            raise ConfigError(f"rope must be a RopeConfig or a mapping of its fields, not {type(self.rope).__name__}")
        names = field_names(RopeConfig)
        for name in self.rope:
            if name not in names:
                raise ConfigError(f"rope must have fields among {', '.join(names)}, not {name!r}")
        self._set("rope", RopeConfig(**self.rope))

    def _check_overrides(self) -> None:
        if self.overrides is None:
            return
        if not isinstance(self.overrides, Mapping) or not all(isinstance(k, str) for k in self.overrides):
            raise ConfigError(f"overrides must map metadata keys (str) to values, not {self.overrides!r}")
        self._set("overrides", MappingProxyType(dict(self.overrides)))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


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
    offload: OffloadPolicy | Mapping[str, Any] | int | None
    rope: RopeConfig | Mapping[str, Any] | None
    overrides: Mapping[str, object] | None
