"""Matcher of texts: `Grammar`, a compiled grammar, and `GrammarState`, a text in progress."""

import os
import re
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.pickling import stays_here
from oxillama._util.sharing import members
from oxillama.errors import GrammarError, PickleError
from oxillama.grammar.automata.masks import Masks, apply_mask
from oxillama.grammar.automata.stacks import Stacks
from oxillama.grammar.automata.triggers import Triggers
from oxillama.grammar.automaton import Automaton, Budget, RuleSet, Vocabulary
from oxillama.grammar.gbnf import parse_gbnf
from oxillama.grammar.regular import choices_rules, regex_rules

__all__ = ["Grammar", "GrammarState", "apply_grammar_mask"]

_TOKEN = re.compile(r"<\[(\d{1,9})\]>")
NO_TOKEN = (1 << 31) - 1
UNIT = 64  # bytes of a text that are stepped over at once: of an ambiguous grammar each can take megabytes


class Grammar:
    """A compiled grammar. Immutable; any number of texts may follow it at once, in any threads, with any vocabulary.

    Compiling is quick, since masks are made when first needed; they are cached for all states of a grammar. Its pickle
    is the text or schema that it was compiled from; a copy is the same object.
    """

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self._origin: tuple[Callable[..., Grammar], tuple[Any, ...]] | None = None
        self._lock = threading.RLock()  # held while nodes are in use: another thread might renumber them
        self._stacks = Stacks(automaton)
        self._n_bytes = automaton.n_bytes  # when it was last counted
        self._masks: weakref.WeakKeyDictionary[Vocabulary, Masks] = weakref.WeakKeyDictionary()
        self._states: weakref.WeakSet[GrammarState] = weakref.WeakSet()
        _grammars.add(self)

    @classmethod
    def parse(
        cls, text: str, *, token_id: Callable[[str], int | None] | None = None, budget: int | None = None
    ) -> "Grammar":
        """Compiles GBNF. `token_id` returns the ids of tokens that the grammar names, as `Tokenizer.token_to_id` does.

        budget: limit of the work, in units of half a microsecond to one; None for 2,500,000. Work is counted and not
            timed, so that a grammar that compiles once does so on every machine.

        Raises GrammarError, with line, column and a caret if the text is wrong, also if the budget is too small.
        """
        if not isinstance(text, str):
            raise GrammarError(f"a grammar must be a str, not {type(text).__name__}")
        return cls.from_rules(*parse_gbnf(text, token_id, budget)).made_by(_parsed, text, token_id, budget)

    @classmethod
    def from_rules(cls, rules: RuleSet, root: int) -> "Grammar":
        """Compiles rules. Raises GrammarError if `root` matches nothing, a rule is missing, or they need too much."""
        return cls(Automaton(rules, root))

    @classmethod
    def from_regex(cls, pattern: str, *, budget: int | None = None) -> "Grammar":
        """Texts that an ECMAScript pattern matches whole, whether it has anchors or not. budget: as in `parse`.

        Raises GrammarError for invalid patterns, and for look-behind and back references: \\b, (?<=a), \\1.
        """
        return cls.from_rules(*regex_rules(pattern, budget)).made_by(partial(cls.from_regex, budget=budget), pattern)

    @classmethod
    def from_choices(cls, choices: Iterable[str], *, budget: int | None = None) -> "Grammar":
        """Any of these texts. budget: as `parse` has it. Raises GrammarError if there are none."""
        if isinstance(choices, Iterable) and not isinstance(choices, str):
            choices = tuple(islice(choices, Budget(budget).limit + 1))  # more are too many
        return cls.from_rules(*choices_rules(choices, budget)).made_by(
            partial(cls.from_choices, budget=budget), choices
        )

    def made_by(self, make: "Callable[..., Grammar]", *source: Any) -> "Grammar":
        """Sets the content of the pickle, which compiles `make(*source)` again, and returns the grammar."""
        self._origin = make, source
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._origin is None:
            raise PickleError("this Grammar was made of rules, which have no text: send the rules' source instead")
        return self._origin

    def __copy__(self) -> "Grammar":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Grammar":
        return self

    def accepts(self, text: "str | bytes | Sequence[str | bytes | int]") -> bool:
        """Whether the whole text is in the language.

        For grammars that refer to tokens, give a list of token ids (int) and texts; in a str, `<[7]>` stands for token
        7. Every character of a str, and every byte of bytes, then counts as a token of its own. Raises GrammarError for
        other types.
        """
        if isinstance(text, str) and self.automaton.has_tokens:
            parts = _TOKEN.split(text)
            text = [int(part) if i % 2 else part for i, part in enumerate(parts)]
        pieces: Sequence[str | bytes | int] = [text] if isinstance(text, str | bytes) else text
        with self._lock:
            self.make_room()
            at = array("i", [self._stacks.root])
            for piece in pieces:
                for unit in self._units(piece):
                    at[0] = self._after(at[0], unit)
                    self.make_room(at)
            return self._stacks.is_end(at[0])

    def _units(self, piece: str | bytes | int) -> Iterable[bytes | int]:
        """The parts of a text that are stepped over at once: between them, stacks that are in the way can go."""
        if isinstance(piece, int) and not isinstance(piece, bool):
            return (piece,)
        if not isinstance(piece, str | bytes):
            raise GrammarError(f"text must be str, bytes or a list of these and token ids, not {type(piece).__name__}")
        if self.automaton.has_tokens and isinstance(piece, str):
            return (c.encode("utf-8", "surrogatepass") for c in piece)
        data = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        size = 1 if self.automaton.has_tokens else UNIT
        return (data[i : i + size] for i in range(0, len(data), size))

    def _after(self, node: int, unit: bytes | int) -> int:
        stacks = self._stacks
        if isinstance(unit, int):
            return stacks.step_token(node, unit)
        if not self.automaton.has_tokens:
            return stacks.step_bytes(node, unit)
        return stacks.either(stacks.step_bytes(node, unit), stacks.step_token(node, NO_TOKEN, True))

    def masks(self, vocabulary: Vocabulary) -> Masks:
        """The masks over a vocabulary. Raises GrammarError if the grammar refers to tokens that it doesn't have."""
        with self._lock:
            found = self._masks.get(vocabulary)
            if found is None:
                found = self._masks[vocabulary] = Masks(self._stacks, vocabulary)
            return found

    def n_bytes(self) -> int:
        """Bytes of memory, about: of the compiled rules, of the states that texts were in, and of their masks.

        As of the last call, while another thread makes masks, for which no call waits.
        """
        if self._lock.acquire(blocking=False):
            try:
                masks = sum(masks.n_bytes for masks in members(self._masks.values()))
                self._n_bytes = self.automaton.n_bytes + self._stacks.n_bytes + masks
            finally:
                self._lock.release()
        return self._n_bytes

    def state(self, vocabulary: Vocabulary, *, triggers: Iterable[str] = (), at_line: bool = False) -> "GrammarState":
        """State of a new text. With `triggers`, the grammar holds from the first of these strings on, that included.

        at_line: as of `GrammarState`.
        """
        return GrammarState(self, vocabulary, triggers=triggers, at_line=at_line)

    def make_room(self, *others: "array[int]") -> None:
        """Drops nodes that no state needs any more, nor any of `others`, once there are many. The caller holds the
        lock."""
        if self._stacks.crowded:
            self._stacks.compact([*(state._nodes for state in members(self._states)), *others])
            for masks in members(self._masks.values()):
                masks.forget()


def _parsed(text: str, token_id: Callable[[str], int | None] | None, budget: int | None) -> Grammar:
    return Grammar.parse(text, token_id=token_id, budget=budget)


_grammars: "weakref.WeakSet[Grammar]" = weakref.WeakSet()


def _renew_locks() -> None:
    """Replaces the locks in a forked child, since a thread of the parent may have held them."""
    for grammar in _grammars:
        grammar._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class GrammarState:
    """State of one text in a grammar, token by token: the tokens allowed next, and rollback.

    Cheap to fork: a position is one integer, and all other data are shared. Not for use by two threads at once.
    """

    __slots__ = ("__weakref__", "_log", "_masks", "_nodes", "_triggers", "_waits", "grammar", "vocabulary")
    __reduce_ex__ = stays_here("send its state(), for GrammarState.from_state, or fork() it here")

    def __init__(
        self, grammar: Grammar, vocabulary: Vocabulary, *, triggers: Iterable[str] = (), at_line: bool = False
    ) -> None:
        """`triggers`: the grammar holds from the first of these strings on, that included; any text may come before.

        at_line: the text begins a line, also behind spaces, so that a trigger whose first character is a line break
        comes there without it.

        Raises GrammarError if the grammar refers to tokens that the vocabulary doesn't have, or if no text of the
        grammar begins with a trigger.
        """
        self.grammar = grammar
        self.vocabulary = vocabulary
        with grammar._lock:
            self._masks = grammar.masks(vocabulary)
            self._triggers = _triggers(grammar._stacks, triggers, at_line)
            self._nodes = array("i", [grammar._stacks.root])  # after each step; the last one is current
            grammar._states.add(self)
        # The state of the triggers after each step; -1: one has come, or there are none.
        self._waits = array("i", [-1 if self._triggers is None else self._triggers.start])
        self._log: list[int | bytes] = []  # the steps

    @property
    def active(self) -> bool:
        """Whether the grammar holds: there are no triggers, or one has come."""
        return self._waits[-1] < 0

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        with self.grammar._lock:
            return not self.active or self.grammar._stacks.is_end(self._nodes[-1])

    def mask(self, out: NDArray[np.uint32]) -> int:
        """Mask of the tokens that may come next: bit t % 32 of out[t // 32]. Returns their number.

        out: uint32 [ceil(n_vocab / 32)], overwritten. End tokens may come exactly where the text may end; other special
        tokens only where the grammar refers to them. Raises GrammarError for an array of another shape, or if the
        grammar is too ambiguous to be followed.
        """
        if not isinstance(out, np.ndarray) or out.dtype != np.uint32 or out.ndim != 1:
            raise GrammarError("the mask must be a uint32 array of one dimension")
        with self.grammar._lock:
            self.grammar.make_room()
            if self._triggers is not None and not self.active:
                return self._triggers.mask(self._masks, self._waits[-1], out)
            return self._masks.mask(self._nodes[-1], out)

    def advance(self, step: int | bytes) -> None:
        """Advances by a token or by bytes. An end token leaves the position, and can be rolled back like others.

        Raises GrammarError if it is not allowed here, or is no token; the state is unchanged then.
        """
        with self.grammar._lock:
            self.grammar.make_room()
            wait, node = self._step(step)
            if wait < 0 and not node:
                what = f"the bytes {step!r}" if isinstance(step, bytes) else self._described(step)
                raise GrammarError(f"{what} can't come here: the grammar doesn't allow it")
            self._nodes.append(node)
            self._waits.append(wait)
            self._log.append(step)

    def _step(self, step: int | bytes) -> tuple[int, int]:
        node, wait, stacks = self._nodes[-1], self._waits[-1], self.grammar._stacks
        if isinstance(step, bytes):
            text: bytes | None = step
        elif isinstance(step, bool) or not hasattr(step, "__index__"):
            raise GrammarError(f"a step is a token id or bytes, not {type(step).__name__}")
        elif step in self.vocabulary.end_ids:
            return wait, node if self.is_complete else 0
        else:
            text = self.vocabulary.text(step)
        if self._triggers is not None and wait >= 0:
            return self._triggers.step(wait, text)
        after = stacks.step_bytes(node, text) if text else node if text == b"" else 0
        if not isinstance(step, bytes) and self.grammar.automaton.has_tokens:
            after = stacks.either(after, stacks.step_token(node, step, text is not None))
        return -1, after

    def _described(self, token: int) -> str:
        text = self.vocabulary.text(token)
        return f"token {token} ({text!r})" if text else f"token {token}"

    def rollback(self, n: int) -> None:
        """Rolls the last n steps back. Raises GrammarError if there were fewer."""
        if not 0 <= n <= len(self._log):
            raise GrammarError(f"can't take back {n} steps: there were {len(self._log)}")
        if n:
            del self._nodes[-n:], self._waits[-n:], self._log[-n:]

    def fork(self) -> "GrammarState":
        """An independent copy of the state, with the same history."""
        twin = object.__new__(GrammarState)
        twin.grammar, twin.vocabulary = self.grammar, self.vocabulary
        twin._masks, twin._triggers = self._masks, self._triggers
        twin._waits, twin._log = self._waits[:], self._log[:]
        with self.grammar._lock:
            twin._nodes = self._nodes[:]
            self.grammar._states.add(twin)
        return twin

    def forced_bytes(self, limit: int = 256) -> bytes:
        """The bytes that must follow, as long as there is only one continuation; at most `limit`. They may end inside a
        character."""
        if not self.active:
            return b""
        with self.grammar._lock:
            self.grammar.make_room()
            return self.grammar._stacks.forced(self._nodes[-1], limit)

    def state(self) -> list[int | str]:
        """The steps so far as plain data for `from_state`: token ids, and bytes in hexadecimal."""
        return [step.hex() if isinstance(step, bytes) else step for step in self._log]

    @classmethod
    def from_state(
        cls,
        data: Iterable[int | str],
        grammar: Grammar,
        vocabulary: Vocabulary,
        *,
        triggers: Iterable[str] = (),
        at_line: bool = False,
    ) -> "GrammarState":
        """The state of the data of `state`, with the same grammar, vocabulary, triggers and `at_line`.

        Raises GrammarError if the data are damaged, or are not of this grammar.
        """
        self = cls(grammar, vocabulary, triggers=triggers, at_line=at_line)
        for i, step in enumerate(data):
            try:
                self.advance(bytes.fromhex(step) if isinstance(step, str) else step)
            except (GrammarError, ValueError, OverflowError) as error:
                raise GrammarError(f"the saved state doesn't fit the grammar at step {i}: {error}") from None
        return self


def _triggers(stacks: Stacks, texts: Iterable[str], at_line: bool) -> Triggers | None:
    if isinstance(texts, str | bytes):
        raise GrammarError("triggers must be a list of strings")
    found = list(texts)
    for text in found:
        if not isinstance(text, str) or not text:
            raise GrammarError(f"a trigger must be a string of at least one character, not {text!r}")
        if not stacks.step_bytes(stacks.root, text.encode("utf-8", "surrogatepass")):
            raise GrammarError(f"no text of the grammar begins with the trigger {text!r}")
    return Triggers(stacks, [text.encode() for text in found], at_line) if found else None


def apply_grammar_mask(logits: NDArray[np.float32], state: GrammarState) -> None:
    """Sets the logits of all tokens that may not come next to minus infinity, in place.

    logits: float32 [n], contiguous, n at least the size of the vocabulary; the rest is banned too. Raises GrammarError
    for another array, or if no token of the vocabulary is allowed.
    """
    if not isinstance(logits, np.ndarray) or logits.dtype != np.float32 or logits.ndim != 1:
        raise GrammarError("logits must be a float32 array of one dimension")
    n_vocab = state.vocabulary.n_vocab
    if len(logits) < n_vocab:
        raise GrammarError(f"there are {len(logits)} logits, fewer than the {n_vocab} tokens of the vocabulary")
    mask = np.empty(state.vocabulary.n_words, np.uint32)
    if not state.mask(mask):
        raise GrammarError("no token of the vocabulary can go on here: it can't spell what the grammar needs")
    apply_mask(logits, mask)
