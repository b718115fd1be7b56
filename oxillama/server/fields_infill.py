"""Field tables of llama-server's own: `/infill` and `/apply-template`."""

from __future__ import annotations

from typing import Any

from oxillama.config import MAX_CONTEXT
from oxillama.sampling.file_defaults import STAGE_NAMES
from oxillama.server.errors import bad_value
from oxillama.server.field_types import Boolean, Either, Field, Integer, Json, Kind, ListOf, Number, Only, Record, Text
from oxillama.server.fields import CHAT, CONSTRAINTS, MODEL, SERVING, accepted, wished
from oxillama.server.fields_numbers import OF_MESSAGES
from oxillama.server.fields_sampling import SAMPLING

__all__ = ["APPLY_TEMPLATE", "INFILL", "samplers_of"]

MAX_EXTRA = 1 << 12
MAX_NAME = 1 << 12
# Letters of llama-server's short form of `samplers`.
_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p",
    "x": "xtc", "t": "temperature", "i": "infill", "a": "adaptive_p", "f": "tfs_z",
}  # fmt: skip
# Samplers that are not here, which are left out.
MISSING = ("infill", "adaptive_p", "tfs_z", "tfs")
SAMPLERS: Kind = Either({"string": Text(0, 64), "array": ListOf(Text(1, 64), 64)})

EXTRA = Record((
    Field("text", Text(), "of the file, or of a part of it", required=True),
    Field("filename", Text(0, MAX_NAME), "its name; default `tmp`"),
    accepted("time", Number(-1e18, 1e18), "of the client"),
))  # fmt: skip
_SHARED = tuple(field for field in SERVING if field.name not in ("return_token_ids", "return_timings", "prediction"))

INFILL = Record((
    MODEL,
    Field("input_prefix", Text(), "the text before the gap", required=True),
    Field("input_suffix", Text(), "the text after it", required=True),
    Field("prompt", Text(), "what follows the prefix: the line of the gap"),
    Field("input_extra", ListOf(EXTRA, MAX_EXTRA), "other files, which come before all"),
    Field("n_predict", Integer(-2, 1 << 31), "tokens to generate at most; below 0: no limit; 0 reads the prompt alone"),
    Field("n_indent", Integer(0, MAX_CONTEXT), "the text ends before a line that is indented less"),
    Field("t_max_predict_ms", Integer(-1, 1 << 31), "after so long, a text of more than one line ends"),
    accepted("t_max_prompt_ms", Integer(-1, 1 << 31), "prompts are computed whole, as there"),
    *SAMPLING,
    Field("samplers", SAMPLERS, "the only stages of sampling that count; `infill` is left out"),
    *CONSTRAINTS,
    Field("stream", Boolean(), "server-sent events, one for each step of the model"),
    Field("response_fields", ListOf(Text(0, 256), 256), "the only fields of the answer, with `/` between their parts"),
    Field("return_tokens", Boolean(), "`tokens` beside the text"),
    accepted("id_slot", Integer(-1, 1 << 31), "there are no slots"),
    accepted("n_keep", Integer(-1, 1 << 31), "what has no room is cut off at the ends that are far from the gap"),
    accepted("min_keep", Integer(0, 1 << 31), "there is always a token left"),
    wished("n_probs", Only((0,)), "give logprobs to /v1/completions"),
    wished("timings_per_token", Only((False,)), "the last event has them"),
    *_SHARED,
))  # fmt: skip

_OWN = {field.name: field for field in CHAT.fields}
APPLY_TEMPLATE = Record((
    MODEL,
    _OWN["messages"],
    _OWN["tools"],
    _OWN["tool_choice"],
    *(_OWN[name] for name in OF_MESSAGES),
    accepted("response_format", Json(), "no part of the prompt"),
))  # fmt: skip


def samplers_of(given: Any, reading: Any) -> list[str]:
    """Names of the stages of sampling that count. Raises ApiError for one that is not known."""
    names = list(given)
    if isinstance(given, str):
        names = [_LETTERS.get(letter, letter) for letter in given]
    for i, name in enumerate(names):
        if name in MISSING:
            reading.leave_out(f"samplers[{i}]={name}", "there is no such sampler", f"samplers={name}")
        elif name not in STAGE_NAMES:
            known = ", ".join(STAGE_NAMES)
            raise bad_value(f"samplers[{i}]", f"samplers[{i}] must be one of {known}, not {name!r:.60}")
    return names
