"""Table of the prompts that `Engine.chat` makes, of a loaded model whose template and special tokens are replaced."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import oxillama as ox
from oxillama.chat import sandbox
from oxillama.core.chat import chat_request
from oxillama.core.loading import shipped_model
from tests.chat.score.prompts import lines
from tests.chat.score.recorded import NOW, Prompt, Template

__all__ = ["engine_of", "table"]

CONTEXT = 1 << 16  # tokens; more than any prompt has


def table(folder: Path) -> Iterator[str]:
    """Lines of the table."""
    with mock.patch.object(sandbox, "datetime", mock.Mock(**{"datetime.now.return_value": NOW})):
        yield from lines("Engine.chat", folder, _made)


def engine_of(template: Template) -> ox.Engine:
    """The shipped model, with the template and its special tokens in place of its own."""
    return ox.load(num_threads=1, overrides=_metadata(template))


def _made(template: Template) -> tuple[frozenset[str], Callable[[Prompt], str]]:
    engine = engine_of(template)
    tokenizer = engine.tokenizer

    def made(prompt: Prompt) -> str:
        given = {name: value for name, value in prompt.options.items() if name != "messages" and value is not None}
        given |= {"template_kwargs": prompt.variables} | ({"tool_format": "text"} if "tools" in given else {})
        ids, _ = chat_request(replace(engine.context, context_size=CONTEXT), prompt.options["messages"], given)
        bos = tokenizer.id_to_token(tokenizer.bos_id)
        return tokenizer.decode(ids if prompt.text.startswith(bos) else ids[ids[0] == tokenizer.bos_id :])

    return tokenizer.template().variables, made


def _metadata(template: Template) -> dict[str, Any]:
    """Metadata in place of the file's: the template, and the texts of its special tokens."""
    with ox.gguf.open(shipped_model()) as file:
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
        bos, eos = (file.metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos"))
    texts = template.data["bos_token"], template.data["eos_token"]
    if texts[0] == texts[1]:
        eos = bos
    for i in (i for i, token in enumerate(tokens) if token in texts):
        tokens[i] = f"<|other {i}|>"
    tokens[bos], tokens[eos] = texts
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.chat_template": template.source,
    }
