"""Settings of texts whose checks need no engine: keywords of its calls, and flags of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from oxillama._util.checks import MAX_CONTEXT, check_int
from oxillama._util.settings import check_fields, setting, settings
from oxillama.errors import ConfigError
from oxillama.keywords import DeadlineFrom
from oxillama.sampler_config import MAX_SEED, checked_ids

__all__ = [
    "MAX_PRIORITY",
    "MAX_SPECULATIVE",
    "Acceptance",
    "DiffusionSettings",
    "DraftSettings",
    "OnStep",
    "ServingSettings",
    "TextSettings",
    "check_stop",
]

Acceptance = Literal["match", "rejection"]
OnStep = Callable[[int, list[int | None]], object]

ACCEPTANCES = get_args(Acceptance)
MAX_PRIORITY = 100
MAX_SPECULATIVE = 32
ORDERS = ("low_confidence", "maskgit_plus", "topk_margin", "entropy", "random", "origin")


def check_stop(name: str, stop: Any) -> tuple[str, ...]:
    """Stop strings as a tuple. Raises ConfigError for an empty one, which would stop before the first character."""
    given = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} must be a string or a list of strings, not {stop!r}")
    stops = tuple(given)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{name} must hold strings of at least one character, not {text!r}")
    return stops


def _check_salt(name: str, salt: Any) -> str:
    if not isinstance(salt, str):
        raise ConfigError(f"{name} must be a str or None, not {salt!r}")
    return salt


@settings(suggests=False)
@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Options of one text that `TextOptions` has, too."""

    max_tokens: int | None = setting(
        None,
        "tokens to generate at most; None: up to the context's end. 0 generates nothing, and is for "
        "`prompt_logprobs`: the prompt, which may then fill the whole context, gets its log-probabilities, and "
        'finish_reason is "length".',
        most=MAX_CONTEXT,
        brief="tokens to generate at most; default: up to the context's end",
    )
    stop: tuple[str, ...] = setting(
        (),
        "strings that end the text; they are cut off, with what follows. The text of a control token, such as "
        '"<|user|>", ends it where that token comes, alone or within other text ("</s>\\n").',
        check=check_stop,
        brief="a text that ends the answer",
    )
    stop_token_ids: tuple[int, ...] = setting(
        (),
        "ids of tokens that end the text, beside those that end it for the model.",
        check=checked_ids,
        brief="a token that ends the text",
    )
    include_stop: bool = setting(
        False,
        "leave the stop string at the end of the text, or the token of `stop_token_ids`, as its last one.",
        brief="leave the stop string in the text",
    )
    ignore_eos: bool = setting(
        False,
        "go on after end-of-generation tokens. Those of `stop_token_ids` end the text all the same.",
        brief="go on when the model wants to end",
    )
    echo: bool = setting(
        False,
        "the prompt stands before the text of each completion: as given, or of token ids their text without "
        "control tokens. token_ids, logprobs and stop strings are of what follows it; on_token and streams get it "
        "first.",
        brief="the prompt before the text",
    )


@settings(suggests=False)
@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Options of a request's order, time and cache, which `ServingOptions` has, too."""

    priority: int = setting(
        0,
        "requests of a higher one go first, and lose what is computed last; 0 to 100. Waiting makes up for it.",
        most=MAX_PRIORITY,
    )
    deadline: float | None = setting(
        None,
        'seconds after which the request ends with the finish reason "deadline" and what there is by then. None '
        "is no limit.",
        above=True,
        brief="end a text that is not done after so many seconds",
        metavar="S",
    )
    deadline_from: DeadlineFrom | None = setting(
        None,
        'whether they count from when the request is queued ("submit") or from its first step in the model '
        '("start"), so that waiting behind others takes nothing from it. None: from "start" in `batch`, whose prompts '
        'are queued long before their turn, and else from "submit".',
        choices=get_args(DeadlineFrom),
    )
    cache_prompt: bool = setting(
        True, "begin with the KV of earlier requests that began alike, and leave it for others."
    )
    cache_salt: str | None = setting(
        None,
        "only requests with the same one share beginnings, so that none can tell by its speed what others ask.",
        check=_check_salt,
    )


@settings(suggests=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """Options of drafting that `DraftOptions` has, too."""

    num_speculative: int = setting(
        4, "draft tokens at a time, at most; 0 to 32.", most=MAX_SPECULATIVE, brief="draft tokens at a time, at most"
    )
    acceptance: Acceptance = setting(
        "match",
        '"match": a draft token counts if the request\'s own sampler draws it. "rejection": it counts with '
        "the probability min(1, p / q), p of the model and q of the draft, and otherwise another token takes its "
        "place, so that texts are others, but as likely as without: for drafts that draw at random. Not with mirostat.",
        choices=ACCEPTANCES,
        brief="when a draft token counts: `match`, or `rejection`, with which texts are others",
    )
    adaptive: bool | None = setting(
        None,
        "draft as many as pay by what was measured, and none where none do; else as many as there are. None: "
        'with "match" alone. With "rejection" a text depends on how many are drafted, so that True is refused there: '
        "each round has num_speculative draft tokens, as far as the draft has an idea, however many steps they take.",
        brief="draft as many as pay by what was measured",
    )


def _check_on_step(name: str, given: Any) -> OnStep:
    if not callable(given):
        raise ConfigError(f"{name} must be callable, not {type(given).__name__}")
    found: OnStep = given
    return found


@settings()
@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """Options of `Engine.diffuse`, checked; what depends on the model is None until `Denoising` knows it.

    {fields}
    """

    max_tokens: int = setting(
        128,
        "positions that are written; all of them, unless an end token comes before.",
        least=1,
        most=MAX_CONTEXT,
        brief="positions that are written",
    )
    steps: int | None = setting(
        None,
        "passes of the model, by default one for each position.",
        least=1,
        most=MAX_CONTEXT,
        brief="passes of the model; default: one for each position",
    )
    order: str | None = setting(
        None,
        "which positions become tokens first: those whose token is the likeliest, by the model "
        '("low_confidence", the default of LLaDA) or among what temperature and cuts leave ("maskgit_plus"); with the '
        'largest lead over the second ("topk_margin"); of the least entropy ("entropy", the default otherwise); '
        '"random"; or each by chance, whatever its token ("origin").',
        choices=ORDERS,
        brief="which positions become tokens first; default: the model's own",
    )
    block_length: int | None = setting(
        None,
        "positions of a block; blocks are written one after another, with equally many steps. By default all of "
        "LLaDA's are one. Without blocks, times decide how many positions a step writes.",
        check=lambda name, given: given,  # in __post_init__
        brief="positions of a block",
    )
    eps: float | None = setting(
        None,
        "the last of the times, which then take the place of LLaDA's block too; 0.001 for others. Not with "
        "block_length.",
        most=1,
        brief="the last of the times",
    )
    temperature: float = setting(
        0.0, "of the tokens, as for `generate`, like top_p and top_k; 0: the likeliest.", most=1e6, brief="of tokens"
    )
    top_p: float = setting(1.0, "of the tokens; 1: of all.", most=1, above=True, brief="of tokens")
    top_k: int = setting(0, "of the tokens; 0: of all.", most=1 << 31, brief="of tokens")
    order_temperature: float = setting(0.0, "above 0, the order is drawn, too.", most=1e6)
    cfg_scale: float = setting(
        0.0,
        "weight of the prompt beyond its own (classifier-free guidance); above 0, a step computes two texts.",
        most=1e6,
        brief="weight of the prompt beyond its own; above 0, a step computes two texts",
    )
    seed: int | None = setting(
        None,
        "the same seed gives the same text, whatever else runs; None is random.",
        most=MAX_SEED,
        brief="the same seed gives the same text",
    )
    mask_token: int | None = setting(
        None, "id of the mask, where the file names none.", check=lambda name, given: given, brief="id of the mask"
    )
    shift_logits: bool | None = setting(
        None,
        "whether logits are for the next place; None: what the file says.",
        brief="whether logits are for the next place",
    )
    on_step: OnStep | None = setting(
        None,
        "called after each step with its number from 1 on and the tokens, None where there is still a mask.",
        check=_check_on_step,
    )
    cancel_token: Any = setting(
        None,
        "lets another thread, or on_step, stop it; what there is before the first mask is returned.",
        check=lambda name, given: given,  # `Denoising` knows its type
    )
    lora: Any = setting(None, "adapters, as for `generate`.", check=lambda name, given: given)

    def __post_init__(self) -> None:
        """Raises ConfigError, which names the option, its value and the range."""
        check_fields(self)
        if self.block_length is not None:
            check_int("block_length", self.block_length, 1, self.max_tokens)
        if self.order_temperature and self.order == "origin":
            raise ConfigError(f'order_temperature is {self.order_temperature}, but order "origin" has no order to draw')
