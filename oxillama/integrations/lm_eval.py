"""Model class of lm-evaluation-harness: an engine in the process of the harness, under the name "oxillama".

>>> from lm_eval import simple_evaluate
>>> from oxillama.integrations.lm_eval import OxillamaLM
>>> results = simple_evaluate(model=OxillamaLM("model.gguf"), tasks=["arc_easy"])

    python -m oxillama.integrations.lm_eval run --model oxillama --model_args pretrained=model.gguf --tasks arc_easy
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm.auto import tqdm  # type: ignore[import-untyped]  # a widget in notebooks

from oxillama._util.checks import check_int
from oxillama.data.engines import EngineSource
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from oxillama.engine import Engine

__all__ = ["OxillamaLM"]

NOT_USED = ("batch_size", "max_batch_size", "device")  # which the harness gives every model
Pair = tuple[Any, list[int], list[int]]  # (key of the harness's cache, context, continuation)


@register_model("oxillama")
class OxillamaLM(TemplateLM):
    """An engine as the harness calls it.

    pretrained: a path, None for the model that ships with the package, or an `Engine`. max_gen_toks: tokens that a task
        generates at most, unless it says otherwise.
    engine: fields of `EngineConfig`, which may also stand alone, as `--model_args` has them: `num_threads=8`.

    Texts are read as the harness's own models read them: the text of a control token is that token. What is longer than
    the context loses its beginning. `close` closes an engine that was opened here.
    """

    def __init__(
        self, pretrained: Any = None, *, max_gen_toks: int = 256, engine: Mapping[str, Any] | None = None, **fields: Any
    ) -> None:  # fmt: skip
        """Opens the engine. Raises what `oxillama.load` raises."""
        super().__init__()
        self.max_gen_toks = check_int("max_gen_toks", max_gen_toks, 1, 1 << 31)
        given = {name: value for name, value in {**(engine or {}), **fields}.items() if name not in NOT_USED}
        self._source = EngineSource(pretrained, given)
        self.tokenizer = self.engine.tokenizer

    @property
    def engine(self) -> Engine:
        return self._source.engine

    @property
    def max_length(self) -> int:
        """Tokens of a context and its continuation together."""
        return self.engine.context_size

    @property
    def tokenizer_name(self) -> str:
        return self.engine.model_config.name.replace("/", "__")

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text. Raises ConfigError for a model without one."""
        return self._token(self.tokenizer.eos_id, self.tokenizer.bos_id)

    @property
    def prefix_token_id(self) -> int:
        """The token that a text without context follows: that which begins one, or else that which ends one."""
        return self._token(self.tokenizer.bos_id, self.tokenizer.eos_id)

    def _token(self, *ids: int | None) -> int:
        found = next((one for one in ids if one is not None), None)
        if found is None:
            raise ConfigError("the model has no token that begins or ends a text, which the harness needs")
        return found

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids of a text; by default with the token that begins one, if the model has it and the text hasn't."""
        tokenizer = self.tokenizer
        ids = tokenizer.encode(string, add_special=False, parse_special=True)
        begins = tokenizer.add_bos if add_special_tokens is None else add_special_tokens
        if not begins or tokenizer.bos_id is None or (add_special_tokens is None and ids[:1] == [tokenizer.bos_id]):
            return ids
        return [tokenizer.bos_id, *ids]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as one text, by the model's template; without a generation prompt it goes on from the last one."""
        template = self.tokenizer.template()
        return template.render(chat_history, continue_final_message=not add_generation_prompt)

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Each continuation's log-probability, and whether greedy generation would give it.

        Continuations of one context, such as the choices of a question, are scored together.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, (_, context, continuation) in enumerate(requests):
            room = max(1, self.max_length - len(continuation))
            groups.setdefault(tuple(context[-room:]), []).append(i)
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        with tqdm(total=len(requests), desc="Scoring", disable=disable_tqdm) as bar:
            for ids, places in groups.items():
                scores = self.engine.score(ids, [requests[i][2] for i in places])
                for i, score in zip(places, scores, strict=True):
                    found[i] = score.logprob, score.greedy
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], found[i])
                bar.update(len(places))
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each whole text; of a long one in windows, which follow each other."""
        found = []
        for (text,) in tqdm([one.args for one in requests], desc="Rolling", disable=disable_tqdm):
            ids = self.tok_encode(text, add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            scores = self._loglikelihood_tokens(pairs, disable_tqdm=True)
            found.append(math.fsum(logprob for logprob, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), found[-1])
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continuation of each context up to a stop string; those with the same settings are computed together."""
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(i)
        found = [""] * len(requests)
        with tqdm(total=len(requests), desc="Generating", disable=disable_tqdm) as bar:
            for places in groups.values():
                settings = requests[places[0]].args[1]
                for i, text in zip(places, self._texts((requests[i].args[0] for i in places), settings), strict=True):
                    found[i] = text
                    self.cache_hook.add_partial("generate_until", requests[i].args, text)
                    bar.update()
        return found

    def _texts(self, contexts: Iterable[str], settings: Mapping[str, Any]) -> Iterable[str]:
        options = options_of(settings, self.max_gen_toks)
        room = max(1, self.max_length - options["max_tokens"])
        prompts = (self.tok_encode(context)[-room:] for context in contexts)
        return (completion.text for completion in self.engine.batch(prompts, **options))

    def close(self) -> None:
        self._source.close()


def options_of(settings: Mapping[str, Any], max_gen_toks: int) -> dict[str, Any]:
    """Options of `engine.batch` for those of a task: greedy generation, unless it says that tokens are to be drawn."""
    given: dict[str, Any] = dict(normalize_gen_kwargs(dict(settings), default_max_gen_toks=max_gen_toks))
    draws = given.pop("do_sample")
    until = [text for text in given.pop("until") if text]
    options = {"stop": until or None, "max_tokens": given.pop("max_gen_toks"), **given}
    return options if draws else {**options, "temperature": 0.0}


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
