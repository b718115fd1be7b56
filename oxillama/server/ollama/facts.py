"""Facts about served models as Ollama's API tells them: of loaded ones, and of files that aren't loaded yet."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oxillama.chat.format import ChatFormat
from oxillama.chat.template import ChatTemplate
from oxillama.engine.engine import Engine
from oxillama.errors import ChatTemplateError, OxiLlamaError
from oxillama.gguf import GGUFFile
from oxillama.gguf import open as open_gguf
from oxillama.gguf.arrays import GGUFArray
from oxillama.gguf.fingerprint import ModelIdentity
from oxillama.gguf.mixes import FILE_TYPES
from oxillama.gguf.values import ValueType
from oxillama.server.engine_facts import writes_calls
from oxillama.server.json_pieces import Body
from oxillama.server.model_facts import Facts
from oxillama.server.models import ServedModel
from oxillama.server.ollama.names import human_number

__all__ = ["TEMPLATE", "details", "facts_of", "model_info", "tensors_of"]

MOST_SHOWN = 5  # items of a list of metadata that is shown without `verbose`
TEMPLATE = "tokenizer.chat_template"
_UNSHOWN = ("general.name", TEMPLATE)
NO_POOLING = 0  # of `pooling_type`


def facts_of(model: ServedModel, template: str | None, tool_format: str | None = None) -> Facts:
    """The facts about a model, which reads the header of its file if it isn't loaded; few are known without one.

    template, tool_format: of the server, in place of the model's. For a thread of its own.
    """
    loaded = model.engine
    if model.facts is None and loaded is not None:
        model.facts = _of_engine(model, loaded.engine, template, tool_format)
    elif model.facts is None and model.path is not None:
        with contextlib.suppress(OxiLlamaError), open_gguf(model.path) as file:  # loading says what is wrong with it
            model.facts = _of_file(model, file, template, tool_format)
    few = Facts(n_bytes=model.weights, digest=_digest(model.id), modified=model.created * 10**9)
    return model.facts or few


def _of_engine(model: ServedModel, engine: Engine, template: str | None, tool_format: str | None) -> Facts:
    identity, tokenizer = engine.context.snapshots.identity, engine.tokenizer
    source = template or tokenizer.chat_template
    found = _capabilities(engine.metadata, bool(engine.context.core.encoder), source, tool_format)
    if tokenizer.fim_pre_id is not None and tokenizer.fim_suf_id is not None and "completion" in found:
        found.append("insert")
    if "tools" in model.capabilities and "tools" not in found:
        found.append("tools")
    facts = _facts(model, engine.metadata, identity, None if identity is None else identity.path, found)
    return replace(facts, context_length=engine.context.factory.room)


def _of_file(model: ServedModel, file: GGUFFile, template: str | None, tool_format: str | None) -> Facts:
    metadata = file.metadata
    source = template or metadata.get_str(TEMPLATE, None)
    encodes = metadata.get_bool(f"{metadata.arch}.attention.causal", True) is False
    found = _capabilities(metadata, encodes, source, tool_format)
    if "tokenizer.ggml.fim_pre_token_id" in metadata and "completion" in found:
        found.append("insert")
    return _facts(model, metadata, ModelIdentity(file), model.path, found)


def _facts(
    model: ServedModel,
    metadata: Mapping[str, Any],
    identity: ModelIdentity | None,
    path: str | None,
    capabilities: list[str],
) -> Facts:
    arch = _arch(metadata)
    number = metadata.get("general.file_type")
    quantization = next((kind.name for kind in FILE_TYPES.values() if kind.id == number), "unknown")
    is_file = path is not None and os.path.isfile(path)
    modified = os.stat(path).st_mtime_ns if is_file and path is not None else model.created * 10**9
    return Facts(
        family=arch,
        n_parameters=None if identity is None else identity.n_parameters,
        quantization=quantization,
        n_bytes=model.weights or (0 if identity is None else identity.fingerprint.file_size),
        digest=_digest(model.id) if identity is None else _fingerprint(identity),
        modified=modified,
        context_length=_integer(metadata, f"{arch}.context_length"),
        embedding_length=_integer(metadata, f"{arch}.embedding_length"),
        capabilities=tuple(capabilities),
    )


def _arch(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("general.architecture", ""))


def _integer(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _fingerprint(identity: ModelIdentity) -> str:
    known = identity.fingerprint
    parts = (known.head_hash, known.tail_hash, known.tensor_hash, known.file_size.to_bytes(8, "little"))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _capabilities(
    metadata: Mapping[str, Any], encoder: bool, template: str | None, tool_format: str | None
) -> list[str]:
    """Abilities of a model, in Ollama's words: one that was trained for embeddings is for them alone."""
    embeds = encoder or metadata.get(f"{_arch(metadata)}.pooling_type", NO_POOLING) != NO_POOLING
    found = ["embedding" if embeds else "completion"]
    if template is None or embeds:
        return found
    try:
        source = ChatTemplate(template)
        found += ["tools"] * writes_calls(source, tool_format)
        found += ["thinking"] * (ChatFormat.of_template(source).reasoning is not None)
    except ChatTemplateError:
        pass
    return found


def details(facts: Facts, parent: str = "") -> Body:
    """The facts under the names that Ollama has for them."""
    return {
        "parent_model": parent,
        "format": "gguf",
        "family": facts.family,
        "families": [facts.family] if facts.family else [],
        "parameter_size": "" if facts.n_parameters is None else human_number(facts.n_parameters),
        "quantization_level": facts.quantization,
        **({} if facts.context_length is None else {"context_length": facts.context_length}),
        **({} if facts.embedding_length is None else {"embedding_length": facts.embedding_length}),
    }


def model_info(metadata: Mapping[str, Any], facts: Facts, verbose: bool) -> Body:
    """Metadata of a file as JSON; lists of more than a few items are empty unless `verbose` asks for them.

    The length of the context is that which requests have, as clients go by it.
    """
    found = {key: _shown(value, verbose) for key, value in metadata.items() if key not in _UNSHOWN}
    counted = {"general.parameter_count": facts.n_parameters, f"{facts.family}.context_length": facts.context_length}
    return found | {key: value for key, value in counted.items() if value is not None}


def _shown(value: Any, verbose: bool) -> Any:
    if isinstance(value, GGUFArray):
        if len(value) > MOST_SHOWN and not verbose:
            return []
        if value.item_type is ValueType.STRING:
            return [one.decode("utf-8", "replace") for one in value.bytes_list()]
        return [_shown(item, verbose) for item in value.tolist()]
    if isinstance(value, list):
        return [_shown(item, verbose) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tensors_of(path: str) -> list[Body]:
    """Names, types and shapes, innermost dimension first, of a file's tensors. Raises LoadError."""
    with open_gguf(path) as file:
        return [{"name": t.name, "type": t.type, "shape": list(reversed(t.shape))} for t in file.tensors.values()]
