"""Conversion between version 1 snapshots and engine state.

The original keeps attention's keys and values as float32, and so does an engine that goes on with them. It leaves out
the tokens, without which they can't be computed again; its state of recurrent layers is a part of ours, and no use.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._util.json_fields import Fields
from oxillama.config import MAX_CONTEXT, SamplerConfig, field_names
from oxillama.errors import SnapshotDamagedError, SnapshotError, SnapshotMismatchError
from oxillama.kernels.attention import KvSlab
from oxillama.kv_cache.kv_io import panels_of, values_of
from oxillama.sampler_config import MAX_TOKEN
from oxillama.sampling import SamplerChain
from oxillama.snapshot.format.reader import ArrayRows, Contents
from oxillama.snapshot.format.v1 import EngineV1, KvV1, SamplerV1
from oxillama.snapshot.request_state import chain_state, config_of, sampler_config_state
from oxillama.snapshot.sequences import UNKNOWN, named_slabs

if TYPE_CHECKING:
    from oxillama.snapshot.capture import SnapshotWriter

__all__ = [
    "described_engine",
    "from_saved",
    "to_saved",
]

KV_TYPE = "f32"
log = logging.getLogger("oxillama")

# Fields of our settings, and the fields of version 1 with the same meaning.
_SAME = set(field_names(SamplerV1)) & set(field_names(SamplerConfig))
SAMPLER = {**{name: name for name in field_names(SamplerConfig) if name in _SAME}, "mirostat": "mirostat_mode"}


def described_engine(v: EngineV1, label: str) -> tuple[dict[str, Any], Fields]:
    """Settings of the engine, and the fields of version 2 for its model and adapters."""
    settings: dict[str, Any] = {"context_size": v.max_context_length, "kv_type": KV_TYPE}
    if v.num_threads:  # zero leaves both to the engine
        settings["num_threads"] = v.num_threads
    if v.prefill_chunk_size:
        settings["prefill_chunk_size"] = min(v.prefill_chunk_size, MAX_CONTEXT)
    if v.tokenizer_path is not None and not v.tokenizer_path.endswith(".json"):
        settings["tokenizer_path"] = v.tokenizer_path
    elif v.tokenizer_path is not None:
        log.warning("%s: its tokenizer %s is no GGUF file: the model's own is used", label, v.tokenizer_path)
    none: dict[str, Any] = {"files": {}, "named": {}, "pushed": []}
    model = {"path": v.model_path, "hub": None, "fingerprint": v.model_fingerprint.state()}
    return settings, Fields({"model": model, "adapters": none}, label)


# ---- resumption


def to_saved(writer: SnapshotWriter, v: EngineV1, label: str) -> Contents:
    """Contents as in version 2. Raises SnapshotMismatchError for state that can't be resumed."""
    _check_model(writer, v, label)
    kv = _attention_of(v, label)
    if writer.config.kv_type != KV_TYPE:
        raise SnapshotMismatchError(
            f"{label}: it holds keys and values as float32, and this engine as {writer.config.kv_type}: load the model "
            f"with kv_type={KV_TYPE!r}"
        )
    if v.tokens and len(v.tokens) < kv.seq_len:
        raise SnapshotDamagedError(f"{label}: it has {len(v.tokens)} tokens, fewer than those of its KV, {kv.seq_len}")
    if any(token > MAX_TOKEN for token in v.tokens):
        raise SnapshotDamagedError(f"{label}: its tokens are not all from 0 to {writer.n_vocab - 1}")
    tokens = np.array(v.tokens or [UNKNOWN] * kv.seq_len, np.int64)
    tensors = _kv_tensors(writer, kv, label) | {"tokens": ArrayRows.whole(tokens)}
    sampler, marks = _sampler_state(v, label)
    state = {
        "kind": "session",
        "unknown_tokens": not v.tokens,
        "sequence": {"n_prompt": len(tokens), "n_computed": kv.seq_len, "weights": []},
        "adapters": {"files": {}, "named": {}, "pushed": []},
        "sampler": sampler,
    }
    return Contents(state, tensors | marks)


def _check_model(writer: SnapshotWriter, v: EngineV1, label: str) -> None:
    if v.arch_id != writer.arch:
        raise SnapshotMismatchError(f"{label}: it is of a model of architecture {v.arch_id}, not {writer.arch}")
    if v.model_fingerprint.probe_size != writer.fingerprint.probe_size:  # version 1 has only this one
        raise SnapshotDamagedError(f"{label}: its fingerprint is of {v.model_fingerprint.probe_size} bytes")
    v.model_fingerprint.check(writer.fingerprint, label, writer.given_as)


def _attention_of(v: EngineV1, label: str) -> KvV1:
    if v.kv is None or v.ssm is not None:
        raise SnapshotMismatchError(
            f"{label}: it is of a model with recurrent layers, whose state version 1 doesn't save whole: only "
            "attention can be resumed"
        )
    kv = v.kv
    sizes = {layer.size for layer in [*kv.keys, *kv.values]}
    if not kv.seq_len and not sum(sizes):
        return kv
    if len(kv.keys) != kv.num_layers or len(kv.values) != kv.num_layers or sizes - {kv.seq_len * kv.kv_dim}:
        raise SnapshotDamagedError(f"{label}: its keys and values are not those of {kv.seq_len} tokens")
    return kv


def _kv_tensors(writer: SnapshotWriter, kv: KvV1, label: str) -> dict[str, ArrayRows]:
    if not kv.seq_len:
        return {}
    slabs = list(named_slabs(writer.core.runner.arrays))
    dims = {
        d for _, s in slabs for d in ((s.n_heads * s.k_dim, s.n_heads * s.v_dim) if isinstance(s, KvSlab) else (0,))
    }
    if len(slabs) != kv.num_layers or dims != {kv.kv_dim}:
        raise SnapshotMismatchError(
            f"{label}: it holds {kv.num_layers} layers of {kv.kv_dim} keys and values; the model's are different"
        )
    if kv.seq_len > writer.context_size:
        raise SnapshotMismatchError(
            f"{label}: its {kv.seq_len} tokens are more than the context_size of this engine, {writer.context_size}"
        )
    tensors = {}
    for (name, slab), keys, values in zip(slabs, kv.keys, kv.values, strict=True):
        assert isinstance(slab, KvSlab)
        shape = kv.seq_len, slab.n_heads, -1
        for part, panels in zip("kv", panels_of(slab, keys.reshape(shape), values.reshape(shape)), strict=True):
            tensors[f"{name}.{part}"] = ArrayRows.whole(panels)
    return tensors


def _sampler_state(v: EngineV1, label: str) -> tuple[dict[str, Any], dict[str, ArrayRows]]:
    s = v.sampler
    try:
        given = {ours: getattr(s, its) for ours, its in SAMPLER.items()} | {
            # A number above the vocabulary's size means all tokens, in either version.
            "top_k": min(s.top_k, MAX_TOKEN),
            "repetition_penalty_window": min(s.repetition_penalty_window, MAX_CONTEXT),
        }
        config = SamplerConfig(grammar=v.grammar_source, **given)
    except ValueError as error:
        raise SnapshotDamagedError(f"{label}: settings of its sampler: {error}") from None
    rng = s.rng_state or 1  # the generator never leaves zero; readers of version 1 do the same
    state = chain_state(SamplerChain.from_config(config)) | {
        "n_prompt": len(v.tokens), "rng": rng, "mu": s.mirostat_mu, "n_processors": 0,
    }  # fmt: skip
    marks = {
        "rng": np.array([rng], np.uint64),
        "mu": np.array([s.mirostat_mu]),
        "history": np.array(v.tokens, np.int32),
    }
    return state, {name: ArrayRows.whole(values) for name, values in marks.items()}


# ---- capture


def from_saved(writer: SnapshotWriter, saved: Contents) -> EngineV1:
    """Contents as in version 1. Raises SnapshotError for state that version 1 has no field for."""
    path = writer.model_path
    if path is None:
        raise SnapshotError("format=1 needs the path of the model, which was loaded from memory: use format=2")
    sequence, tokens = saved.state["sequence"], saved.tensors["tokens"].array.tolist()
    if sequence["weights"]:
        raise SnapshotError("format=1 has no place for adapters, which the session uses: use format=2")
    given = saved.state.get("sampler") or chain_state(SamplerChain.from_config(SamplerConfig.original()))
    config = config_of(given["config"])
    tokenizer = writer.described["model"]["tokenizer_path"]
    return EngineV1(
        writer.arch, path, tokenizer, replace(writer.fingerprint, tensor_hash=b""),
        [] if UNKNOWN in tokens else tokens, _kv_of(writer, saved, sequence["n_computed"]), None,
        _sampler_of(config, given), config.grammar, writer.context_size, writer.num_threads,
        writer.config.prefill_chunk_size,
    )  # fmt: skip


def _kv_of(writer: SnapshotWriter, saved: Contents, n: int) -> KvV1:
    keys, values, dims = [], [], set()
    for name, slab in named_slabs(writer.core.runner.arrays):
        if not isinstance(slab, KvSlab):
            raise SnapshotError("format=1 has no place for the whole state of recurrent layers: use format=2")
        dims |= {slab.n_heads * slab.k_dim, slab.n_heads * slab.v_dim}
        if n:
            k, v = saved.tensors[f"{name}.k"], saved.tensors[f"{name}.v"]
            if k.start:
                raise SnapshotError("format=1 has no place for windows, of which the beginning is gone: use format=2")
            pair = values_of(slab, (k.array, v.array), n)
            keys.append(pair[0].reshape(-1))
            values.append(pair[1].reshape(-1))
        else:
            keys.append(np.empty(0, np.float32))
            values.append(np.empty(0, np.float32))
    if len(dims) != 1 or len(keys) != writer.spec.n_layers:
        raise SnapshotError(
            f"format=1 has no place for keys and values of several sizes ({sorted(dims)}): use format=2"
        )
    return KvV1(keys, values, n, len(keys), writer.context_size, dims.pop())


def _sampler_of(config: SamplerConfig, given: Any) -> SamplerV1:
    known = {*SAMPLER, "grammar", "schema_mode"}
    for name in sampler_config_state(config):
        if name not in known:
            raise SnapshotError(f"format=1 has no place for the sampler's {name}: use format=2")
    if config.mirostat == 1:
        raise SnapshotError("format=1 has mirostat 2 only, not 1: use format=2")
    fields = {its: getattr(config, ours) for ours, its in SAMPLER.items()}
    rng = given.get("rng", config.seed or 0)
    return SamplerV1(rng, given.get("mu", 2.0 * config.mirostat_tau), **fields)
