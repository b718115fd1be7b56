"""Identity of an engine: what its results depend on, by which a job that goes on knows that they will agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxillama._util.version import __version__

if TYPE_CHECKING:
    from oxillama.engine import Engine
    from oxillama.gguf.fingerprint import ModelFingerprint

__all__ = ["identity_of"]

# Fields of `EngineConfig` that change results; others change how soon they come.
DECIDING = ("kv_type", "rope", "overrides")


def identity_of(engine: Engine) -> dict[str, str]:
    """The model's file, the tokenizer's, adapters, settings, arithmetic and the version, each as text."""
    snapshots, config = engine.context.snapshots, engine.config
    files = {"model": snapshots.identity, "tokenizer": snapshots.tokenizer_identity}
    found = {name: _known_by(one.fingerprint) if one else "" for name, one in files.items()}
    found |= {name: repr(getattr(config, name)) for name in DECIDING}
    found["lora"] = repr([(lora.digest, scale) for lora, scale in engine.pushed_loras])
    found |= {"arithmetic": snapshots.arithmetic, "version": __version__}
    return found | {"context_size": str(engine.context_size)}


def _known_by(file: ModelFingerprint) -> str:
    hashes = (file.head_hash, file.tail_hash, file.tensor_hash)
    return f"{file.file_size}:{':'.join(one.hex()[:16] for one in hashes)}"
