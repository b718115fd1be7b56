"""Tokens of texts and conversations, in vLLM's form, as evaluations ask for them."""

from __future__ import annotations

from oxillama.core.prompts import check_length, check_tokens
from oxillama.server.embedding_run import engine_errors
from oxillama.server.errors import bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Values
from oxillama.server.fields_numbers import DETOKENIZE, OF_MESSAGES, TOKENIZE
from oxillama.server.json_pieces import Body
from oxillama.server.models import Chosen
from oxillama.server.prompting import COUNTED, prompt_of

__all__ = ["detokenize", "tokenize", "tokenizer_info"]


async def tokenize(exchange: Exchange) -> None:
    """POST /tokenize"""
    values = await exchange.fields(TOKENIZE)
    chosen = await exchange.read_model(values)
    shows = read_shown(values)
    engine = chosen.model.ready.engine

    def make() -> Body:
        ids = read_ids(values, exchange, chosen)
        found: Body = {"count": len(ids), "max_model_len": engine.context.factory.room, "tokens": ids}
        if shows:
            found["token_strs"] = [engine.tokenizer.id_to_token(token) for token in ids]
        return found

    with chosen.in_use():
        found = await exchange.elsewhere(lambda: engine_errors(make, chosen))
    await exchange.answer(await exchange.written(lambda: found), "application/json")


def read_shown(values: Values) -> bool:
    """Reads whether the tokens' texts are wanted. Raises ApiError unless there is a prompt, or messages."""
    if ("prompt" in values) == ("messages" in values):
        raise bad_value("prompt", "prompt or messages must be given, and not both", "missing_parameter")
    return bool(values.get("return_token_strs"))


def read_ids(values: Values, exchange: Exchange, chosen: Chosen) -> list[int]:
    """The tokens of a text, whose control tokens are read, or of a conversation."""
    engine = chosen.model.ready.engine
    if "messages" in values:
        if values.get("add_special_tokens"):
            raise bad_value("add_special_tokens", "add_special_tokens is for prompt: a chat template writes its own")
        return prompt_of(values, exchange, chosen)
    for name in ("tools", *OF_MESSAGES):
        if name in values:
            raise bad_value(name, f"{name} is for messages, not for prompt")
    # However long it is: a text that doesn't fit is counted, too, unless it is longer than any could be.
    check_length(engine.tokenizer, "prompt", values["prompt"], COUNTED * engine.context_size, parse_special=True)
    special = values.get("add_special_tokens", True)
    return engine.tokenizer.encode(values["prompt"], add_special=special, parse_special=True)


async def detokenize(exchange: Exchange) -> None:
    """POST /detokenize"""
    values = await exchange.fields(DETOKENIZE)
    chosen = await exchange.read_model(values)
    engine = chosen.model.ready.engine

    def read_text() -> str:
        return engine.tokenizer.decode(check_tokens("tokens", values["tokens"], engine.tokenizer.n_vocab))

    with chosen.in_use():
        text = await exchange.elsewhere(lambda: engine_errors(read_text, chosen))
    await exchange.answer(await exchange.written(lambda: {"prompt": text}), "application/json")


async def tokenizer_info(exchange: Exchange) -> None:
    """GET /tokenizer_info"""
    chosen = await exchange.service.models.use(None)
    tokenizer = chosen.model.ready.engine.tokenizer

    def text(token: int | None) -> str | None:
        return None if token is None else tokenizer.id_to_token(token)

    await exchange.json(
        {
            "tokenizer_class": tokenizer.model,
            "bos_token": text(tokenizer.bos_id),
            "eos_token": text(tokenizer.eos_id),
            "pad_token": text(tokenizer.pad_id),
            "chat_template": exchange.service.models.template or tokenizer.chat_template,
            "n_vocab": tokenizer.n_vocab,
            "model_max_length": chosen.model.ready.engine.context.factory.room,
        }
    )
