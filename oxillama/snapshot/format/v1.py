"""Version 1 of the snapshot format.

An integer below 251 is one byte; else a byte that says how many follow, little-endian: 251 two, 252 four, 253 eight.
Signed ones are zigzag first. Bytes (u8) and floats are as they are, little-endian. A text or list begins with its
length, an option with 0 or 1, a variant of an enumeration with its number; structures and arrays of fixed length are
their fields one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import SnapshotDamagedError, SnapshotError, SnapshotFormatError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.snapshot.format.layout import MAGIC

__all__ = [
    "SPEC_MAGIC",
    "Decoder",
    "Encoder",
    "EngineV1",
    "KvV1",
    "SamplerV1",
    "SpeculativeV1",
    "SsmV1",
]

T = TypeVar("T")
Byte = int  # of 0 to 255, written as it is

WIDTHS = {251: 2, 252: 4, 253: 8}
_F32 = struct.Struct("<f")


class Decoder:
    """Reader of values, one after another. Each method raises SnapshotDamagedError with the value's name and place."""

    def __init__(self, data: bytes, label: str) -> None:
        self._data, self._label = memoryview(data), label
        self.position = 0

    def wrong(self, name: str, what: str) -> SnapshotDamagedError:
        return SnapshotDamagedError(f"{self._label}: {name} at byte {self.position} {what}")

    def raw(self, name: str, n: int) -> bytes:
        if n > len(self._data) - self.position:
            raise self.wrong(name, f"needs {n} bytes, and {len(self._data) - self.position} are left")
        self.position += n
        return bytes(self._data[self.position - n : self.position])

    def uint(self, name: str, bits: int = 64) -> int:
        first = self.raw(name, 1)[0]
        if first > 253:
            raise self.wrong(name, f"begins with {first}, which no integer of {bits} bits does")
        value = first if first < 251 else int.from_bytes(self.raw(name, WIDTHS[first]), "little")
        # Only the shortest form is valid.
        if value >> bits or (first >= 251 and value < (251, 1 << 16, 1 << 32)[first - 251]):
            raise self.wrong(name, f"is {value} in a form that is not that of an integer of {bits} bits")
        return value

    def sint(self, name: str) -> int:
        value = self.uint(name)
        return (value >> 1) ^ -(value & 1)

    def float(self, name: str) -> float:
        value: float = _F32.unpack(self.raw(name, 4))[0]
        return value

    def text(self, name: str) -> str:
        try:
            return self.raw(name, self.uint(name)).decode()
        except UnicodeDecodeError:
            raise self.wrong(name, "is no UTF-8") from None

    def option(self, name: str, read: Callable[[], T]) -> T | None:
        given = self.raw(name, 1)[0]
        if given > 1:
            raise self.wrong(name, f"is marked as {given}, neither there (1) nor not (0)")
        return read() if given else None

    def floats(self, name: str) -> NDArray[np.float32]:
        return np.frombuffer(self.raw(name, 4 * self.uint(name)), "<f4")

    def many(self, name: str, read: Callable[[], T]) -> list[T]:
        """A list of items of at least a byte each."""
        n = self.uint(name)
        if n > len(self._data) - self.position:
            raise self.wrong(name, f"has {n} items, more than bytes are left")
        return [read() for _ in range(n)]

    def end(self) -> None:
        if self.position != len(self._data):
            raise self.wrong("the end", f"is followed by {len(self._data) - self.position} bytes more")


class Encoder:
    """Writer of values, one after another, into `data`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, value: bytes) -> None:
        self.data += value

    def uint(self, value: int) -> None:
        if value < 251:
            self.data.append(value)
            return
        first = 251 if value < 1 << 16 else 252 if value < 1 << 32 else 253
        self.data.append(first)
        self.data += value.to_bytes(WIDTHS[first], "little")

    def sint(self, value: int) -> None:
        self.uint((value << 1) ^ (value >> 63))

    def float(self, value: float) -> None:
        self.data += _F32.pack(value)

    def text(self, value: str) -> None:
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise SnapshotError(f"format=1 has no place for {value!r:.200}, which is no UTF-8: use format=2") from None
        self.uint(len(encoded))
        self.data += encoded

    def option(self, value: T | None, write: Callable[[T], None]) -> None:
        self.data.append(value is not None)
        if value is not None:
            write(value)

    def floats(self, values: NDArray[np.float32]) -> None:
        self.uint(values.size)
        self.data += np.ascontiguousarray(values, "<f4").tobytes()


SPEC_MAGIC = b"OXISPEC1"


@dataclass
class KvV1:
    """Attention's state: keys and values of each layer, float32 [seq_len * kv_dim], token after token."""

    keys: list[NDArray[np.float32]]
    values: list[NDArray[np.float32]]
    seq_len: int
    num_layers: int
    max_seq_len: int
    kv_dim: int

    @classmethod
    def read(cls, d: Decoder) -> KvV1:
        keys, values = (d.many(name, lambda name=name: d.floats(name)) for name in ("keys", "values"))  # type: ignore[misc]
        return cls(keys, values, *(d.uint(n) for n in ("seq_len", "num_layers", "max_seq_len", "kv_dim")))

    def write(self, e: Encoder) -> None:
        for layers in (self.keys, self.values):
            e.uint(len(layers))
            for layer in layers:
                e.floats(layer)
        for number in (self.seq_len, self.num_layers, self.max_seq_len, self.kv_dim):
            e.uint(number)


@dataclass
class SsmV1:
    """State-space layers: a state of each, float32; empty for layers with attention."""

    ssm_states: list[NDArray[np.float32]]
    step: int

    @classmethod
    def read(cls, d: Decoder) -> SsmV1:
        return cls(d.many("ssm_states", lambda: d.floats("ssm_states")), d.uint("step"))

    def write(self, e: Encoder) -> None:
        e.uint(len(self.ssm_states))
        for state in self.ssm_states:
            e.floats(state)
        e.uint(self.step)


@dataclass
class SamplerV1:
    """Settings and state of a sampler, in the order of the file. seed: None for a random one. mirostat_mode: 0 or 2."""

    rng_state: int
    mirostat_mu: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    repetition_penalty_window: int
    seed: int | None
    mirostat_mode: Byte
    mirostat_tau: float
    mirostat_eta: float

    @classmethod
    def read(cls, d: Decoder) -> SamplerV1:
        readers: dict[Any, Callable[[str], Any]] = {
            "int": d.uint,
            "float": d.float,
            "Byte": lambda name: d.raw(name, 1)[0],
            "int | None": lambda name: d.option(name, lambda: d.uint(name)),
        }
        return cls(**{one.name: readers[one.type](one.name) for one in fields(cls)})

    def write(self, e: Encoder) -> None:
        writers: dict[Any, Callable[[Any], None]] = {
            "int": e.uint,
            "float": e.float,
            "Byte": lambda value: e.raw(bytes([value])),
            "int | None": lambda value: e.option(value, e.uint),
        }
        for one in fields(self):
            writers[one.type](getattr(self, one.name))


@dataclass
class EngineV1:
    """A session in version 1. The original writer leaves `tokens` empty. At least one of kv and ssm is present."""

    arch_id: str
    model_path: str
    tokenizer_path: str | None
    model_fingerprint: ModelFingerprint
    tokens: list[int]
    kv: KvV1 | None
    ssm: SsmV1 | None
    sampler: SamplerV1
    grammar_source: str | None
    max_context_length: int
    num_threads: int
    prefill_chunk_size: int
    magic: bytes = field(default=MAGIC, init=False)
    version: int = field(default=1, init=False)

    @classmethod
    def decode(cls, data: bytes, label: str = "<memory>") -> EngineV1:
        """Raises SnapshotFormatError for another version, SnapshotDamagedError with the field and its place."""
        d = Decoder(data, label)
        if data[:8] != MAGIC:
            raise SnapshotFormatError(f"{label}: this is no snapshot: it begins with {data[:8]!r}, not {MAGIC!r}")
        d.raw("magic", 8)
        if (version := d.uint("version", 32)) != 1:
            raise SnapshotFormatError(f"{label}: version {version} is not 1")
        arch, path = d.text("arch_id"), d.text("model_path")
        tokenizer = d.option("tokenizer_path", lambda: d.text("tokenizer_path"))
        size, mtime = d.uint("file_size"), d.sint("mtime_secs")
        head, tail = d.raw("head_hash", 32), d.raw("tail_hash", 32)
        fingerprint = ModelFingerprint(size, mtime, head, tail, d.uint("probe_size", 32))
        tokens = d.many("tokens", lambda: d.uint("tokens", 32))
        variant = d.uint("sequence_state", 32)
        if variant > 2:
            raise d.wrong("sequence_state", f"is variant {variant}; 0 to 2 are known")
        kv = KvV1.read(d) if variant != 1 else None
        ssm = SsmV1.read(d) if variant else None
        sampler = SamplerV1.read(d)
        grammar = d.option("grammar_state", lambda: d.text("grammar_source"))
        sizes = [d.uint(name) for name in ("max_context_length", "num_threads", "prefill_chunk_size")]
        d.end()
        return cls(arch, path, tokenizer, fingerprint, tokens, kv, ssm, sampler, grammar, *sizes)

    def encode(self) -> bytes:
        """The bytes that the original would write."""
        e, print_ = Encoder(), self.model_fingerprint
        e.raw(MAGIC)
        e.uint(1)
        e.text(self.arch_id)
        e.text(self.model_path)
        e.option(self.tokenizer_path, e.text)
        e.uint(print_.file_size)
        e.sint(print_.mtime_secs)
        e.raw(print_.head_hash + print_.tail_hash)
        e.uint(print_.probe_size)
        e.uint(len(self.tokens))
        for token in self.tokens:
            e.uint(token)
        e.uint(0 if self.ssm is None else 1 if self.kv is None else 2)
        for part in (self.kv, self.ssm, self.sampler):
            if part is not None:
                part.write(e)
        e.option(self.grammar_source, e.text)
        for number in (self.max_context_length, self.num_threads, self.prefill_chunk_size):
            e.uint(number)
        return bytes(e.data)


@dataclass
class SpeculativeV1:
    """A speculative session in version 1. accepted_tokens: those of the last round."""

    target: EngineV1
    draft: EngineV1
    num_speculative: int
    spec_seed: int | None
    accepted_tokens: list[int]
    rng_state: int

    @classmethod
    def decode(cls, data: bytes, label: str = "<memory>") -> SpeculativeV1:
        """Integers of the envelope are little-endian, of fixed length. Raises what `EngineV1.decode` raises."""
        d = Decoder(data, label)
        if data[:8] != SPEC_MAGIC:
            raise SnapshotFormatError(f"{label}: this is no speculative snapshot: it begins with {data[:8]!r}")
        d.raw("magic", 8)

        def number(name: str, n: int = 8) -> int:
            return int.from_bytes(d.raw(name, n), "little")

        if (version := number("version", 4)) != 1:
            raise SnapshotFormatError(f"{label}: version {version} of speculative snapshots is not known here: 1 is")
        target = EngineV1.decode(d.raw("target", number("target")), f"{label}: target")
        draft = EngineV1.decode(d.raw("draft", number("draft")), f"{label}: draft")
        n_speculative = number("num_speculative")
        seed = d.option("spec_seed", lambda: number("spec_seed"))
        n = number("accepted_tokens")
        accepted = list(struct.unpack(f"<{n}I", d.raw("accepted_tokens", 4 * n)))
        rng = number("rng_state")
        d.end()
        return cls(target, draft, n_speculative, seed, accepted, rng)

    def encode(self) -> bytes:
        """The bytes that the original would write."""
        target, draft = self.target.encode(), self.draft.encode()
        seed = b"\0" if self.spec_seed is None else b"\1" + struct.pack("<Q", self.spec_seed)
        return b"".join(
            (
                SPEC_MAGIC, struct.pack("<IQ", 1, len(target)), target, struct.pack("<Q", len(draft)), draft,
                struct.pack("<Q", self.num_speculative), seed, struct.pack("<Q", len(self.accepted_tokens)),
                struct.pack(f"<{len(self.accepted_tokens)}I", *self.accepted_tokens), struct.pack("<Q", self.rng_state),
            )
        )  # fmt: skip
