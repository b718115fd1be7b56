"""Drafts as JSON: what guessed for a text, by which one that goes on is given the same again."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from oxillama.engine.speculation import MAX_DRAFTS, MAX_SPECULATIVE, NO_DRAFTS, DraftOptions, Speculation
from oxillama.errors import ConfigError, SnapshotDamagedError, SnapshotMismatchError
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.origin import ModelFingerprint
from oxillama.snapshot.settings import config_state
from oxillama.speculative.draft import Draft
from oxillama.speculative.forced import GrammarDraft
from oxillama.speculative.lookup import MAX_NGRAM, PromptLookup

if TYPE_CHECKING:
    from oxillama.speculative.draft_model import DraftModel

__all__ = ["check_same", "described", "model_of", "read_drafts", "read_options", "remade", "speculation_state"]

# Settings of a draft model without which its guesses would be others.
DECISIVE = ("kv_type", "rope", "overrides")

log = logging.getLogger("oxillama")


# ---- out


def described(draft: str | Draft) -> dict[str, Any]:
    """What tells a draft from others, as far as that can be told."""
    if isinstance(draft, str):
        draft = PromptLookup() if draft == "lookup" else GrammarDraft()
    if type(draft) is PromptLookup:
        texts = json.dumps(draft.texts).encode() if draft.texts else None
        digest = None if texts is None else blake3(texts).hexdigest()
        return {"kind": "lookup", "min_ngram": draft.min_ngram, "max_ngram": draft.max_ngram, "texts": digest}
    if type(draft) is GrammarDraft:
        return {"kind": "grammar"}
    model = model_of(draft)
    if model is not None and model.identity is not None:
        config = config_state(model.config)
        return {
            "kind": "model", "fingerprint": model.identity.fingerprint.state(), "reach": model.reach,
            "config": {name: config[name] for name in DECISIVE},
        }  # fmt: skip
    return {"kind": "object", "type": f"{type(draft).__module__}.{type(draft).__qualname__}"}


def model_of(draft: Any) -> DraftModel | None:
    """The model of a draft that has one."""
    from oxillama.speculative.decoder import SpeculativeDecoder
    from oxillama.speculative.draft_model import DraftModel

    if type(draft) is SpeculativeDecoder:  # its guesses are those of its model
        return draft.model
    return draft if type(draft) is DraftModel else None


def speculation_state(speculation: Speculation | None) -> dict[str, Any] | None:
    """Of a request; None if nobody guesses for it (any more)."""
    if speculation is None or not speculation.drafts:
        return None
    state = {
        "num_speculative": speculation.k,
        "acceptance": speculation.acceptance,
        "adaptive": speculation.adaptive,
        "drafts": [described(draft) for draft in speculation.drafts],
    }
    begun = speculation.n_begun if speculation.round is None else speculation.round.n_used
    return state | ({"n_begun": begun} if begun else {})


# ---- in


def read_drafts(given: Fields | None, own: Any, label: str) -> DraftOptions:
    """Who guesses for a request that goes on: `own` if that is given, else those that can be made again.

    With acceptance="rejection" the text depends on the guesses: then it is an error to lack one, or to give another.
    Raises ConfigError for what is no draft, SnapshotMismatchError, SnapshotDamagedError.
    """
    mine = own if isinstance(own, DraftOptions) else DraftOptions(draft=own)
    if given is None:  # nobody guessed, and so nothing may depend on guesses now
        return DraftOptions(mine.draft, mine.num_speculative) if mine.draft else NO_DRAFTS
    options, saved = read_options(given, label), descriptions(given, label)
    names = ", ".join(name_of(one) for one in saved)
    if own is not None:
        if options["acceptance"] == "rejection":
            check_all(mine.draft, saved, label)
        return DraftOptions(draft=mine.draft, **options)
    found = [remade(one) for one in saved]
    if None in found and options["acceptance"] == "rejection":
        raise SnapshotMismatchError(
            f"{label}: with acceptance='rejection' its text depends on the guesses of its drafts ({names}), of which "
            "some can't be made again from the file: give draft=, the same as before"
        )
    if None in found:
        log.warning("%s: not all of its drafts (%s) can be made again: give draft= to guess on", label, names)
    drafts = [draft for draft in found if draft is not None]
    return DraftOptions(draft=drafts, **options) if drafts else NO_DRAFTS


def read_options(given: Fields, label: str) -> dict[str, Any]:
    """All of `DraftOptions` but the draft. Raises SnapshotDamagedError."""
    options: dict[str, Any] = {
        "num_speculative": given.integer("num_speculative", 0, MAX_SPECULATIVE),
        "acceptance": given.text("acceptance"),
        "adaptive": given.flag("adaptive"),
    }
    if options["acceptance"] == "rejection":  # once it could be adaptive
        options["adaptive"] = False
    try:
        DraftOptions(**options)
    except ConfigError as error:
        raise SnapshotDamagedError(f"{label}: {error}") from None
    return options


def descriptions(given: Fields, label: str) -> list[Fields]:
    """What is said of the drafts. Raises SnapshotDamagedError."""
    found = given.items_of("drafts")
    if not 0 < len(found) <= MAX_DRAFTS or not all(isinstance(one, dict) for one in found):
        raise given.wrong("drafts", f"a list of 1 to {MAX_DRAFTS} objects")
    return [Fields(one, f"{label}: drafts[{i}]") for i, one in enumerate(found)]


def name_of(one: Fields) -> str:
    return one.text("type" if one.text("kind") == "object" else "kind")


def remade(one: Fields) -> Draft | None:
    """A draft that its description is enough to make. Raises SnapshotDamagedError."""
    kind = one.text("kind")
    if kind == "lookup" and one.maybe_text("texts") is None:
        least = one.integer("min_ngram", 1, MAX_NGRAM)
        return PromptLookup(one.integer("max_ngram", least, MAX_NGRAM), least)
    return GrammarDraft() if kind == "grammar" else None


def check_all(drafts: tuple[str | Draft, ...], saved: list[Fields], label: str) -> None:
    """Raises SnapshotMismatchError unless drafts are those of which it is told."""
    if len(drafts) != len(saved):
        raise SnapshotMismatchError(f"{label}: it was made with {len(saved)} drafts, and {len(drafts)} are given")
    for draft, one in zip(drafts, saved, strict=True):
        check_same(draft, one, label)


def check_same(draft: str | Draft, one: Fields, label: str) -> None:
    """Raises SnapshotMismatchError, which names what differs, unless a draft is the one of which it is told."""
    mine = described(draft)
    if one.text("kind") == mine["kind"] == "model":
        fingerprint = ModelFingerprint.read(Fields(mine["fingerprint"], "draft"))
        ModelFingerprint.read(one.sub("fingerprint")).check(fingerprint, f"{label}: its draft", "draft")
        one = Fields(dict(one) | {"fingerprint": mine["fingerprint"]}, label)  # but for the file's time
    for name, value in mine.items():
        if one.get(name) != value:
            raise SnapshotMismatchError(
                f"{label}: its draft has {name}={shown(one.get(name))}, and the one that is given {shown(value)}: give "
                "the same as before"
            )


def shown(value: Any) -> str:
    return f"{value!r:.80}"
