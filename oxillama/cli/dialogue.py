"""Dialogue with a model: its messages, and the removal of old ones when the context is full."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from oxillama.cli.text import deadline_line
from oxillama.core.options import TextOptions
from oxillama.errors import ChatTemplateError, ContextOverflowError, KvCacheFullError
from oxillama.tokenizer import ChatTemplate

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["Dialogue", "note"]

Messages = list[dict[str, str]]
ROOM = 4  # an answer gets a quarter of the context, even if older messages have to be dropped for it


def note(text: str) -> None:
    """Prints a notice on standard error."""
    print(text, file=sys.stderr, flush=True)


class Dialogue:
    """Messages of a user and answers of a model, printed as they arrive. Each turn computes only its new tokens.

    opening: messages that stand before all others, and stay. template: a chat template in place of the model's.
    interactive: Ctrl-C ends an answer alone, and not the program.

    Raises ChatTemplateError if there is no template or it doesn't compile, GrammarError for what answers can't follow,
    GenerateError if the model has an encoder.
    """

    def __init__(
        self, engine: Engine, options: TextOptions, opening: Messages, template: str | None, *, interactive: bool
    ) -> None:
        self._conversation = engine.conversation()
        engine.tokenizer.template() if template is None else ChatTemplate(template)
        engine._factory.prepare(options)
        self._engine, self._options, self._template = engine, options, template
        self._interactive = interactive
        self._opening = opening
        self._messages = list(opening)
        # The KV cache may be smaller than the context.
        self._limit = min(engine.context_size, engine._core.scheduler.capacity)
        self._room = max(1, min(self._limit // ROOM, options.max_tokens or self._limit))

    def reset(self) -> None:
        """Drops all messages but the opening."""
        self._messages = list(self._opening)
        self._conversation.reset()

    def answer(self, text: str) -> bool:
        """Prints the answer to a message. False if there is none, which is reported, or if it isn't complete.

        What was said until Ctrl-C counts. A message that fails is left out of what follows.
        """
        asked: Messages = [*self._messages, {"role": "user", "content": text}]
        pieces: list[str] = []
        reason, n_tokens = None, 0
        try:
            asked, ids = self._fitting(asked)
            n_tokens = len(ids)
            with contextlib.closing(self._conversation.stream(ids, self._limited(n_tokens))) as stream:
                for chunk in stream:
                    pieces.append(chunk.text)
                    reason, n_tokens = chunk.finish_reason, n_tokens + len(chunk.token_ids)
                    print(chunk.text, end="", flush=True)
        except KeyboardInterrupt:
            print(flush=True)
            if not self._interactive:
                raise
            return self._stopped(asked, "".join(pieces))
        except (ContextOverflowError, KvCacheFullError, ChatTemplateError) as error:
            note(f"oxillama: error: {' '.join(str(error).split())} (the message is left out)")
            return False
        print(flush=True)
        self._messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]
        return self._is_whole(reason, n_tokens)

    def _limited(self, n_prompt: int) -> TextOptions:
        """The options, without more tokens than the cache has room for after a prompt."""
        most = self._options.max_tokens
        return self._options if most is None else replace(self._options, max_tokens=min(most, self._limit - n_prompt))

    def _fitting(self, messages: Messages) -> tuple[Messages, list[int]]:
        """Messages without the oldest turns that leave no room for an answer, and their prompt."""
        n_opening, kept = len(self._opening), messages
        while True:
            ids = self._engine.chat_tokens(kept, chat_template=self._template)
            turns = kept[n_opening:]
            if len(ids) + self._room <= self._limit or len(turns) == 1:
                break
            kept = [*self._opening, *turns[2:]]  # a message and its answer
        if len(ids) >= self._limit:
            raise ContextOverflowError(
                f"the message takes {len(ids):,} tokens and the context holds {self._limit:,}, with the answer: "
                "shorten it, or give a larger --context-size or --kv-budget"
            )
        if n_dropped := len(messages) - len(kept):
            note(f"[the oldest {n_dropped} messages are forgotten: the context holds {self._limit:,} tokens]")
        return kept, ids

    def _stopped(self, asked: Messages, said: str) -> bool:
        if said:
            self._messages = [*asked, {"role": "assistant", "content": said}]
        else:
            note("[stopped before the answer began: the message is taken back]")
        return False

    def _is_whole(self, reason: str | None, n_tokens: int) -> bool:
        if reason == "deadline":
            note(deadline_line(self._options.serving.deadline or 0.0))
        elif reason == "length" and n_tokens >= self._limit:
            note(f"[the answer ends here: the context holds {self._limit:,} tokens]")
        else:
            return True
        return False
