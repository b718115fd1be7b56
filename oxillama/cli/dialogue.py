"""Dialogue with a model: its messages, and the removal of old ones when the context is full."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oxillama.chat.calls import AnyToolCall, BrokenToolCall, ToolCall
from oxillama.chat.message import ChatMessage
from oxillama.cli.text import deadline_line
from oxillama.core.answer_options import AnswerOptions
from oxillama.core.chat import reading_of
from oxillama.core.options import PromptOptions, TextOptions
from oxillama.errors import ChatTemplateError, ContextOverflowError, KvCacheFullError

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["Dialogue", "note"]

Messages = list[dict[str, Any]]
DIM, PLAIN = "\x1b[2m", "\x1b[22m"
ROOM = 4  # an answer gets a quarter of the context, even if older messages have to be dropped for it


def note(text: str) -> None:
    """Prints a notice on standard error."""
    print(text, file=sys.stderr, flush=True)


class Dialogue:
    """Messages of a user and answers of a model, printed as they arrive. Each turn computes only its new tokens.

    opening: messages that stand before all others, and stay. prompt: options of the prompts; if there are tools, the
    messages behind a call are what it returned. interactive: Ctrl-C ends an answer alone, and not the program.

    Raises ChatTemplateError if there is no template or it doesn't compile, ToolFormatError if it isn't known how calls
    are written, GrammarError for what answers can't follow, GenerateError if the model has an encoder.
    """

    def __init__(
        self,
        engine: Engine,
        options: TextOptions,
        opening: Messages,
        prompt: PromptOptions,
        *,
        interactive: bool,
    ) -> None:
        self._conversation = engine.conversation()
        self._answers = AnswerOptions(prompt.get("tools"), tool_format=prompt.get("tool_format"))
        self._engine, self._options, self._prompt = engine, options, prompt
        prepared = self._with_tools([{"role": "user", "content": "?"}])
        engine.context.factory.prepare(prepared)
        self._warned: set[str] = set()
        if prepared.tool_use is not None and prepared.tool_use.note:
            self._warn([prepared.tool_use.note])
        self._open_calls: list[ToolCall] = []
        self._interactive = interactive
        self._opening = opening
        self._messages = list(opening)
        # The KV cache may be smaller than the context.
        self._limit = min(engine.context_size, engine.context.core.scheduler.capacity)
        self._room = max(1, min(self._limit // ROOM, options.max_tokens or self._limit))

    def reset(self) -> None:
        """Drops all messages but the opening."""
        self._messages = list(self._opening)
        self._open_calls = []
        self._conversation.reset()

    @property
    def awaits_result(self) -> bool:
        """Whether the next message is what a call returned."""
        return bool(self._open_calls)

    def answer(self, text: str) -> bool:
        """Prints the answer to a message. False if there is none, which is reported, or if it isn't complete.

        What was said until Ctrl-C counts. A message that fails is left out of what follows. While calls have no result,
        a message is that of the first of them, and the answer comes after the last.
        """
        asked: Messages = [*self._messages, self._said(text)]
        if self._open_calls[1:]:
            self._messages = asked
            self._open_calls = self._open_calls[1:]
            self._ask()
            return True
        pieces: list[str] = []
        thoughts: list[str] = []
        calls: list[AnyToolCall] = []
        reason, n_tokens, warnings = None, 0, list[str]()
        try:
            asked, ids = self._fitting(asked)
            n_tokens = len(ids)
            options = self._limited(self._with_tools(asked), n_tokens)
            with contextlib.closing(self._conversation.stream(ids, options)) as stream:
                for chunk in stream:
                    self._show_thought(chunk.reasoning, bool(pieces))
                    thoughts.append(chunk.reasoning)
                    if chunk.text and not pieces and any(thoughts):
                        print(file=sys.stderr, flush=True)
                    pieces += [chunk.text] if chunk.text else []
                    calls += chunk.tool_calls
                    unread = [call.raw for call in chunk.tool_calls if isinstance(call, BrokenToolCall)]
                    reason, n_tokens = chunk.finish_reason, n_tokens + len(chunk.token_ids)
                    print(chunk.text, *unread, sep="", end="", flush=True)
                    warnings = chunk.warnings
        except KeyboardInterrupt:
            print(flush=True)
            if not self._interactive:
                raise
            return self._stopped(asked, "".join(pieces))
        except (ContextOverflowError, KvCacheFullError, ChatTemplateError) as error:
            note(f"oxillama: error: {' '.join(str(error).split())} (the message is left out)")
            return False
        if any(thoughts) and not pieces:
            print(file=sys.stderr, flush=True)
        print(flush=True)
        self._messages = [*asked, ChatMessage("".join(thoughts), "".join(pieces), calls).to_message()]
        self._open_calls = [call for call in calls if isinstance(call, ToolCall)]
        self._warn(warnings)
        self._ask()
        return self._is_whole(reason, n_tokens)

    def _warn(self, warnings: list[str]) -> None:
        """Prints what of the options couldn't be done, once for all answers."""
        for text in warnings:
            if text not in self._warned:
                note(f"[{text}]")
        self._warned.update(warnings)

    def _show_thought(self, text: str, answering: bool) -> None:
        """Prints reasoning, dimmed where a terminal shows it, on standard error: the answer alone goes to pipes."""
        if text and not answering:
            print(f"{DIM}{text}{PLAIN}" if sys.stderr.isatty() else text, end="", file=sys.stderr, flush=True)

    def _said(self, text: str) -> dict[str, Any]:
        """A line as a message: of the user, or what a call returned."""
        if not self._open_calls:
            return {"role": "user", "content": text}
        call = self._open_calls[0]
        return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}

    def _ask(self) -> None:
        """Shows the first call without a result."""
        if self._open_calls:
            call = self._open_calls[0]
            note(f"[call: {call.name}({json.dumps(call.arguments, ensure_ascii=False)}); type what it returns]")

    def _with_tools(self, messages: Messages) -> TextOptions:
        """The options, with calls looked for in the answer to messages."""
        use = reading_of(self._engine.tokenizer, messages, self._prompt, self._answers)
        return self._options if use is None else replace(self._options, tool_use=use)

    def _limited(self, options: TextOptions, n_prompt: int) -> TextOptions:
        """Options without more tokens than the cache has room for after a prompt."""
        most = options.max_tokens
        return options if most is None else replace(options, max_tokens=min(most, self._limit - n_prompt))

    def _fitting(self, messages: Messages) -> tuple[Messages, list[int]]:
        """Messages without the oldest turns that leave no room for an answer, and their prompt."""
        n_opening, kept = len(self._opening), messages
        while True:
            ids = self._engine.chat_tokens(kept, **self._prompt)
            turns = kept[n_opening:]
            later = [i for i, message in enumerate(turns) if i and message["role"] == "user"]
            if len(ids) + self._room <= self._limit or not later:
                break
            kept = [*self._opening, *turns[later[0] :]]  # without a message and its answers
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
            self._open_calls = []
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
