"""Fields of a saved request for text, each checked against the others before anything of it runs.

What follows from its tokens (text that is held back, how much is shown, the place in a grammar) is found by replaying
them: `check_replayed`. All raise SnapshotDamagedError, which names the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oxillama._util.json_fields import Fields
from oxillama.core.logprobs import LogprobRecorder
from oxillama.core.options import MAX_COMPLETIONS
from oxillama.core.prompts import check_stop
from oxillama.core.results import Chunk, TokenLogprob, Usage
from oxillama.errors import SnapshotDamagedError
from oxillama.snapshot.request_state import REASONS

if TYPE_CHECKING:
    from oxillama.core.generation_request import GenerationRequest
    from oxillama.snapshot.resume_request import TextResumer

__all__ = ["check_replayed", "check_text", "check_together", "restore_scores"]


def check_text(resumer: TextResumer, chunks: Sequence[Chunk]) -> None:
    """Numbers of tokens, and what was said and not read yet, of a request that has not been made yet."""
    given, n, n_prompt = resumer.given, len(resumer.tokens), resumer.n_prompt
    reason = given.get("finished")
    if not (reason is None or isinstance(reason, str)) or reason not in REASONS:
        raise given.wrong("finished", "a reason to finish")
    limit, n_shown = given.integer("limit", n_prompt + 1), given.integer("n_shown", n_prompt, n)
    if limit < n + (reason is None):
        raise given.wrong("limit", f"more than its {n} tokens")
    if reason is not None and (n_shown != n or resumer.sequence.integer("n_computed")):
        raise given.wrong("n_shown", f"{n}, with nothing computed, as it has finished")
    sampler = resumer.state.sub("sampler")
    if sampler.integer("n_prompt") != n_prompt:
        raise sampler.wrong("n_prompt", f"{n_prompt}, the tokens of its prompt")
    if not given.flag("ignore_eos"):
        _check_ends(resumer)
    if given.get("echo") and (n_shown > n_prompt or chunks or reason is not None):
        raise given.wrong("echo", "null: a part of the text is there already")
    check_stop(given.texts("stops"))
    _check_chunks(resumer, chunks, n_shown)


def _check_ends(resumer: TextResumer) -> None:
    ends = resumer.engine.tokenizer.eog_ids
    for i, token in enumerate(resumer.tokens[resumer.n_prompt :]):
        if token in ends:
            raise SnapshotDamagedError(f"{resumer.label}: token {i} of its text is {token}, which ends a text")


def _check_chunks(resumer: TextResumer, chunks: Sequence[Chunk], n_shown: int) -> None:
    given = resumer.given
    number, reason = given.integer("number", 0, MAX_COMPLETIONS - 1), given.get("finished")
    first = n_shown - sum(len(chunk.token_ids) for chunk in chunks)
    for i, chunk in enumerate(chunks):
        name = f"unread[{i}]"
        ids, wanted = chunk.token_ids, reason if i == len(chunks) - 1 else None
        if first < resumer.n_prompt or ids != resumer.tokens[first : first + len(ids)]:
            raise given.wrong("unread", f"the last of its {n_shown - resumer.n_prompt} tokens that were shown")
        if chunk.index != number or chunk.finish_reason != wanted:
            raise given.wrong("unread", f"chunks of completion {number} that end with {reason!r}: {name} is not")
        _check_end(resumer, chunk, name)
        first += len(ids)


def _check_end(resumer: TextResumer, chunk: Chunk, name: str) -> None:
    """What is said of the end of the text, in its last chunk."""
    given, stop = resumer.given, chunk.stop_reason
    of_token, of_text = isinstance(stop, int), isinstance(stop, str)
    ends = () if given.flag("ignore_eos") else resumer.engine.tokenizer.eog_ids
    known = stop in ends if of_token else stop is None or stop in given.texts("stops")
    if not known or ((of_token or of_text) and chunk.finish_reason != "stop"):
        raise given.wrong("unread", f"what ended the text: {name} says {stop!r:.60}")
    if chunk.end is not None and (given.get("logprobs") is None or chunk.end.token_id != stop):
        raise given.wrong("unread", f"the log-probability of the token that ended the text: {name} has another")
    counts = resumer.n_prompt, len(resumer.tokens) - resumer.n_prompt, given.maybe_integer("n_cached") or 0
    if chunk.usage is not None and chunk.usage != Usage(*counts):
        raise given.wrong("unread", f"{Usage(*counts)}: {name} says {chunk.usage}")


# ---- log-probabilities


def restore_scores(resumer: TextResumer, request: GenerationRequest, chunks: Sequence[Chunk]) -> None:
    """Gives a request those of its tokens, as many as its options ask for, and no more than are computed."""
    scores, given = request.scores, resumer.given.maybe_sub("scores")
    if (scores is None) != (given is None):
        raise resumer.given.wrong("scores", "there if logprobs or prompt_logprobs ask for them")
    if scores is not None and given is not None:
        _fill(resumer, request, scores, given)
    tokens, prompt = (None, None) if scores is None else (scores.tokens, scores.prompt)
    first = request._n_shown - resumer.n_prompt - sum(len(chunk.token_ids) for chunk in chunks)
    for i, chunk in enumerate(chunks):
        end = first + len(chunk.token_ids)
        of_tokens, of_prompt = None if tokens is None else tokens[first:end], None if first else prompt
        if chunk.logprobs != of_tokens or chunk.prompt_logprobs != of_prompt:
            raise resumer.given.wrong("unread", f"the log-probabilities of the same tokens: unread[{i}] has others")
        first = end


def _fill(resumer: TextResumer, request: GenerationRequest, scores: LogprobRecorder, given: Fields) -> None:
    reader, prompt, drawn = resumer.reader, resumer.tokens[: resumer.n_prompt], resumer.tokens[resumer.n_prompt :]
    found = {name: reader.many(given, name) for name in ("tokens", "prompt")}
    k, prompt_k = (resumer.given.get(name) for name in ("logprobs", "prompt_logprobs"))
    if (found["tokens"] is None) != (k is None) or (found["prompt"] is None) != (prompt_k is None):
        raise given.wrong("tokens", "what logprobs and prompt_logprobs ask for")
    if k is not None and not _are_of(found["tokens"], drawn, k):
        raise given.wrong("tokens", f"log-probabilities of {len(drawn)} tokens, with the {k} likeliest")
    if prompt_k is not None:
        known, n_computed = found["prompt"] or [], resumer.sequence.integer("n_computed")
        # The first is of no token before, and what is computed already will not be again.
        least = 1 + min(n_computed, len(prompt) - 1)
        if known[:1] != [None] or not least <= len(known) or not _are_of(known[1:], prompt[1:], prompt_k, cut=True):
            raise given.wrong("prompt", f"log-probabilities of {least} to {len(prompt)} tokens, the first null")
    scores.tokens, scores.prompt = found["tokens"], found["prompt"]
    request.want = "all" if scores.wants_prompt(request.sequence) else "last"


def _are_of(found: Any, tokens: list[int], k: int, *, cut: bool = False) -> bool:
    """Whether log-probabilities are of these tokens, or of the first of them, with at most the k likeliest."""
    if len(found) > len(tokens) or (len(found) < len(tokens) and not cut):
        return False
    return all(
        isinstance(p, TokenLogprob) and p.token_id == token and len(p.top) <= k
        for p, token in zip(found, tokens, strict=False)
    )


# ---- what follows from the tokens


def check_replayed(resumer: TextResumer, request: GenerationRequest) -> None:
    """The state that follows from the tokens of a request must be the one that was saved."""
    given, grammar = resumer.given, request.sampler.memory.grammar
    if request.stopped:
        raise given.wrong("stops", "none that its text has already")
    found, steps = request.progress(), None if grammar is None else len(grammar.state())
    for name in ("limit", "held", "utf8", "n_shown"):
        if type(found[name]) is not type(given.get(name)) or found[name] != given[name]:
            raise given.wrong(name, f"{found[name]!r:.60}, as its tokens say,")
    if steps != resumer.state.sub("sampler").maybe_integer("grammar_steps"):
        raise SnapshotDamagedError(f"{resumer.label}: its place in the grammar is not where its tokens lead")


def check_together(resumers: Sequence[TextResumer]) -> None:
    """The completions of one prompt: all are of the same, and each has its number."""
    first = resumers[0]
    for i, one in enumerate(resumers):
        if one.tokens[: one.n_prompt] != first.tokens[: first.n_prompt]:
            raise SnapshotDamagedError(f"{one.label}: its completions are of several prompts")
        if len(resumers) > 1 and one.given.integer("number") != i:
            raise one.given.wrong("number", f"{i}, its place among the completions,")
