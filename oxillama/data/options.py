"""Options of `Generate`: those of all rows, those that a column has for each, and those that no row can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oxillama._util.checks import check_choice, given_of
from oxillama.data.columns import Column, is_null
from oxillama.data.schema import read_schema
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.core.context import EngineContext

__all__ = ["Options", "check_details"]

# Options of the engine's calls that a mapper has no use for, with what it has instead.
REFUSED = {
    "on_token": "results come by batches: give progress=",
    "stream": "results come by batches",
    "errors": "give on_error=",
    "ordered": "rows keep their order",
    "cancel_token": "give deadline=, or leave map() early",
    "logprobs": 'give details=("logprobs",), which is a column of them',
    "prompt_logprobs": 'give details=("prompt_logprobs",), which is a column of them',
    "tool_use": "give tools= with messages=",
}
# Options that change how soon a text comes, and not which.
QUICKER = ("draft", "num_speculative", "adaptive", "max_in_flight")
# Options that decide which columns there are.
WHOLE = ("n", "json_schema", "schema_mode", "max_in_flight")


def check_details(details: Any, known: Mapping[str, object], usual: tuple[str, ...]) -> tuple[str, ...]:
    """Names of more columns. Raises ConfigError for one that is not known."""
    if details is None or isinstance(details, bool):
        return usual if details else ()
    if isinstance(details, str) or not isinstance(details, Sequence):
        raise ConfigError(f"details must be True, False or a list of names, not {details!r}")
    return tuple(dict.fromkeys(check_choice(f"details[{i}]", one, tuple(known)) for i, one in enumerate(details)))


class Options:
    """The keywords of a `Generate`, checked as far as they can be without a model.

    n: completions of each row; None: one, not in a list. columns: those that options of rows are read from.
    schema: that texts follow, read. of_batch: keywords of `engine.batch`. deciding: options that results depend on.
    """

    def __init__(self, given: Mapping[str, Any], *, chat: bool, details: tuple[str, ...]) -> None:
        """chat: whether prompts are made of messages. Raises ConfigError and TypeError."""
        from oxillama.core.options import ChatOptions, StreamOptions, check_options

        for name, value in given.items():
            if name in REFUSED and value is not None:
                raise ConfigError(f"{name} is not for Generate: {REFUSED[name]}")
            if isinstance(value, Column) and name in WHOLE:
                raise ConfigError(f"{name} must be the same for all rows: the columns that are added depend on it")
        names = [name for name in given if name != "max_in_flight" and name not in REFUSED]
        check_options("chat" if chat else "generate", names)
        given = given_of(given)
        self.schema = read_schema(given["json_schema"]) if "json_schema" in given else None
        if self.schema is not None:
            given = given | {"json_schema": self.schema}
        own = {name: value for name, value in given.items() if name != "max_in_flight"}
        if own.get("echo") and (chat or self.schema is not None):
            raise ConfigError("echo must be left out with messages, and with json_schema: JSON is all of the text")
        kinds = ChatOptions.__annotations__
        self._integers = {name for name in own if kinds.get(name) in (int, int | None)}
        self._rows = {name: value.name for name, value in own.items() if isinstance(value, Column)}
        fixed = {name: value for name, value in own.items() if name not in self._rows}
        if "prompt_logprobs" in details:
            fixed["prompt_logprobs"] = 0
        if "logprobs" in details:
            fixed["logprobs"] = 0
        chats = ChatOptions.__annotations__.keys() - {"n", *StreamOptions.__annotations__}
        self._chat = {name: fixed.pop(name) for name in chats if name in fixed}
        self._fixed = fixed
        self.of_batch = fixed | {name: given[name] for name in ("max_in_flight",) if name in given}
        self.n: int | None = fixed.get("n")
        self.deciding = {name: value for name, value in sorted(given.items()) if name not in QUICKER}
        self.columns = tuple(dict.fromkeys(self._rows.values()))
        self._check()

    def _check(self) -> None:
        """Raises ConfigError for values of options that all rows have."""
        from oxillama.core.batch import read_settings
        from oxillama.core.options import read_options
        from oxillama.sampler_config import SamplerConfig
        from oxillama.sampling import SamplerChain

        _, given = read_settings([], self.of_batch)
        read_options("stream", given, SamplerChain.from_config(SamplerConfig()))

    def prepare(self, context: EngineContext) -> None:
        """Raises what is wrong with the options of all rows for this model: GrammarError, ConfigError, LoraError."""
        from oxillama.core.options import read_options

        parsed = read_options("stream", self._fixed, context.factory.default_chain)
        parsed.chain.config.check_ids(context.spec.n_vocab)
        context.factory.prepare(parsed)
        if parsed.serving.lora is not None:
            context.loras.select(parsed.serving.lora)

    def of_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Options that a row has for itself."""
        found = {}
        for name, column in self._rows.items():
            value = row[column]
            if not is_null(value):
                value = value.tolist() if hasattr(value, "tolist") else value
                found[name] = _whole(value) if name in self._integers else value
        return found

    def rendered(
        self, context: EngineContext, messages: Any, own: Mapping[str, Any]
    ) -> tuple[list[int], dict[str, Any]]:
        """Token ids of messages, and the options that a row has then. Raises what `engine.chat` raises for them."""
        from oxillama.core.chat import chat_request

        return chat_request(context, messages, {**self._chat, **own})


def _whole(value: Any) -> Any:
    """An integer for a whole number: pandas makes floats of integers beside a null. Beyond 53 bits it stays a float,
    which is refused, since it may be another integer's neighbour."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= 1 << 53 else value
