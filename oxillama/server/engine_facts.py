"""Facts of a loaded engine that answers tell: its fingerprint, its abilities, sizes of its file."""

from __future__ import annotations

import hashlib
from typing import Any

from oxillama.chat.template import ChatTemplate
from oxillama.chat.tool_display import answer_format
from oxillama.core.chat import template_for
from oxillama.engine.engine import Engine
from oxillama.gguf.mixes import FILE_TYPES
from oxillama.server.json_pieces import Body

__all__ = ["capabilities", "file_facts", "fingerprint_of", "writes_calls"]


def fingerprint_of(engine: Engine) -> str:
    """Equal for servers whose answers with a seed are equal to the bit: of version, arithmetic, model and KV."""
    identity = engine.context.snapshots.identity
    parts: list[Any] = [engine.context.snapshots.arithmetic, engine.config.kv_type, engine.n_vocab]
    if identity is not None:
        known = identity.fingerprint
        parts += [known.file_size, known.head_hash.hex(), known.tail_hash.hex(), known.tensor_hash.hex()]
    return "fp_" + hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def capabilities(engine: Engine, tool_format: str | None, template: str | None) -> list[str]:
    """Abilities of a model. tool_format, template: the server's own, in place of the model's."""
    if engine.context.core.encoder:
        found = ["embeddings"]
    else:
        chats = template is not None or engine.tokenizer.chat_template is not None
        found = ["chat"] * chats + ["completions", "embeddings"]
    found += ["rerank"] * (engine.context.classifier is not None)
    calls = "chat" in found and writes_calls(template_for(engine.tokenizer, [{}], template), tool_format)
    return found + ["tools"] * calls


def writes_calls(template: ChatTemplate, tool_format: str | None) -> bool:
    """Whether it is known how a model with this template calls tools. tool_format: of the server."""
    if tool_format not in (None, "none"):
        return tool_format != "text"
    form = answer_format(template, {"tools": [{}], "tool_format": tool_format})
    return form.calls is not None or form.harmony


def file_facts(engine: Engine) -> Body:
    """Sizes of the model's file: how many values and bytes its tensors have, and the name of their quantisation."""
    identity, number = engine.context.snapshots.identity, engine.metadata.get("general.file_type")
    return {
        "quantization": next((kind.name for kind in FILE_TYPES.values() if kind.id == number), None),
        "parameters": None if identity is None else identity.n_parameters,
        "size": None if identity is None else identity.n_bytes,
    }
