"""The Jinja2 environment of chat templates: Hugging Face's, in an immutable sandbox with bounded time and memory.

Jinja2's sandbox keeps templates from Python's internals but not from ``'a' * 10**9`` or nested loops. Here the syntax
tree is rewritten before it is compiled, so that loops, literals, ``~`` and output pass through filters that charge a
:class:`~oxillama.chat.budget.Budget`; operators, calls and named filters are checked where the sandbox lets one
hook in, before they run if their result can be much larger than their arguments, or their work than their length.
"""

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, SupportsIndex, cast

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from oxillama.chat.budget import Budget, LimitError, budget
from oxillama.chat.calls import read_json
from oxillama.chat.charging import EACH, EMIT, JOIN, MADE, SEEN, SLICED, SPENT, Charging
from oxillama.chat.growth import (
    FILTER_CHECKS,
    FREE_FILTERS,
    FREE_TESTS,
    METHOD_CHECKS,
    REFUSED_METHODS,
    check_format,
    check_method,
)

__all__ = ["Absent", "SandboxEnvironment"]

# Filters that no chat template has a use for and whose output is hard to bound.
_REFUSED_FILTERS = ("pprint", "urlize", "wordwrap", "xmlattr")
_READING = ("copy", "count", "index")  # methods of lists that go through all of them
_MAX_STRFTIME = 256
_MAX_TOKENS = 30_000


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` marks what an assistant says, for training; here it is no-op."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounded(Extension):
    """Refuses templates whose compilation would take seconds; real ones have a few thousand tokens."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for count, token in enumerate(stream):
            if count >= _MAX_TOKENS:
                raise TemplateSyntaxError(f"it has more than {_MAX_TOKENS} tokens", token.lineno)
            yield token


class _OpaqueNamespace(Namespace):
    """A namespace whose printed form does not show its contents, which may hold one another over and over."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Absent(Undefined):
    """The value of a variable that isn't given, where templates expect None as well as nothing.

    It is not defined, and it is none; a loop over it does nothing, and it is printed as None.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return "None"


class _OwnList(list[Any]):
    """A list that the template wrote, which it may change as it may not change its arguments."""

    CHANGES = frozenset({"append", "pop"})

    def append(self, value: Any) -> None:
        budget.get().changed()
        super().append(value)

    def pop(self, at: SupportsIndex = -1) -> Any:
        budget.get().changed()
        return super().pop(at)


@pass_context
def _each(_: Context, values: Iterable[Any], work: int) -> Iterator[Any]:
    return _paced(values, work)


def _paced(values: Iterable[Any], work: int) -> Iterator[Any]:
    """Items, each of which takes so much work."""
    spend = budget.get().step
    for value in values:
        spend(work)
        yield value


@pass_context
def _made(_: Context, value: Any) -> Any:
    if isinstance(value, list):
        value = _OwnList(value)
    return budget.get().made(value, "a literal")


@pass_context
def _join(_: Context, parts: tuple[Any, ...]) -> str:
    spent = budget.get()
    texts = [spent.text(part) for part in parts]
    spent.allow(sum(map(len, texts)), "~")
    return cast("str", spent.made("".join(texts), "~"))


@pass_context
def _emit(_: Context, value: Any) -> str:
    spent = budget.get()
    text = spent.text(value)
    spent.emit(text)
    return text


@pass_context
def _sliced(_: Context, value: Any) -> Any:
    spent = budget.get()
    spent.step(1 + (len(value) >> 8 if isinstance(value, (str, bytes, list, tuple)) else 0))
    return spent.made(value, "a slice")


@pass_context
def _seen(_: Context, value: Any) -> Any:
    if not isinstance(value, Mapping):  # whose keys are found at once
        budget.get().read(value)
    return value


@pass_context
def _spent(_: Context, value: int, work: int) -> int:
    budget.get().step(work)
    return value


def _charged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is checked before and after it runs."""
    check, free = FILTER_CHECKS.get(name), name in FREE_FILTERS
    # Jinja2 passes the context, evaluation context or environment first to functions that carry this mark.
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        spent = budget.get()
        spent.call(len(args) + len(kwargs))
        if not free:
            spent.read(*args[skip:], *kwargs.values())
        if check is not None:
            rest, kwargs = check(spent, *args[skip:], **kwargs)
            args = args[:skip] + rest
        found = function(*args, **kwargs)
        if isinstance(found, Iterator):
            names = [one for one in (*args[skip + 1 :], *kwargs.values()) if isinstance(one, str)]
            return _paced(found, 1 + sum(map(len, names)) // 4)
        return spent.made(found, f"the filter {name!r}")

    return charged


def _stepped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A test that counts its work: ``select`` and ``reject`` run one for each item."""
    free = name in FREE_TESTS

    @functools.wraps(function)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        spent = budget.get()
        spent.call(len(args) + len(kwargs))
        if not free:
            spent.read(*args, *kwargs.values())
        return function(*args, **kwargs)

    return stepped


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, with the arguments that ``transformers`` gives this filter."""
    spent = budget.get()
    spent.allow(spent.size(value), "the filter 'tojson'")
    spent.step(spent.size(value) >> 6)
    spent.allow(indent if isinstance(indent, int) else len(indent or ""), "the filter 'tojson'")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        check_circular=False,
        default=_plain,
    )
    pieces: list[str] = []
    total = 0
    for piece in encoder.iterencode(value):
        spent.step()
        total += len(piece)
        spent.allow(total, "the filter 'tojson'")
        pieces.append(piece)
    return "".join(pieces)


def _is_none(value: object) -> bool:
    return value is None or isinstance(value, Absent)


def _plain(value: object) -> list[Any] | None:
    """List of the values that filters such as `map` give, for JSON."""
    if isinstance(value, Absent):
        return None
    if isinstance(value, Iterator):
        items = list(value)
        budget.get().made(items, "the filter 'tojson'")
        return items
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _from_json(value: Any) -> Any:
    """A value from its JSON text, as templates read arguments and results with it."""
    spent = budget.get()
    text = spent.text(value)
    spent.step(len(text) >> 3)
    spent.claim(32 * len(text), "the filter 'from_json'")
    try:
        found = read_json(text)
    except ValueError as error:
        raise TemplateError(f"from_json: {error}") from None
    return spent.made(found, "the filter 'from_json'")


def _string(value: Any) -> str:
    return budget.get().text(value)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > _MAX_STRFTIME:
        raise LimitError(f"strftime_now() takes a format of at most {_MAX_STRFTIME} characters")
    budget.get().step(len(format))
    return (budget.get().now or datetime.datetime.now()).strftime(format)


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """Environment for one or more chat templates. Render inside a context where ``budget`` is set."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation, _Bounded],
            # Folding constants would run operators at compile time, outside of any budget.
            optimized=False,
            cache_size=0,
        )
        self.filters["tojson"] = _tojson
        self.filters["string"] = self.filters["safe"] = _string  # nothing is escaped, so that nothing is marked safe
        self.filters["from_json"] = self.filters["fromjson"] = _from_json
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters = {name: _charged(name, function) for name, function in self.filters.items()}
        self.filters |= {EACH: _each, MADE: _made, JOIN: _join, EMIT: _emit}
        self.filters |= {SLICED: _sliced, SEEN: _seen, SPENT: _spent}
        tests = cast("dict[str, Callable[..., Any]]", self.tests)
        self.tests = {name: _stepped(name, function) for name, function in tests.items()}
        self.tests["none"] = _is_none
        del self.globals["lipsum"]
        self.globals.update(namespace=_OpaqueNamespace, raise_exception=_raise_exception, strftime_now=_strftime_now)

    def variables(self, source: str) -> frozenset[str]:
        """Names that a template looks up outside of itself."""
        return frozenset(find_undeclared_variables(self.parse(source)))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Charging().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        spent = budget.get()
        spent.step(1 + (_bits(left) + _bits(right) >> 6))
        if operator == "%" and isinstance(left, (str, bytes)):
            check_format(spent, left, right)
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                spent.allow_bits(left.bit_length() + right.bit_length())
            elif isinstance(left, int) or isinstance(right, int):
                times, sequence = (left, right) if isinstance(left, int) else (right, left)
                spent.allow(times * (len(sequence) if isinstance(sequence, str) else spent.size(sequence)), "*")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0)
            spent.allow_bits(bits)
            spent.step(bits >> 9)
        return spent.made(super().call_binop(context, operator, left, right), operator)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, _OwnList) and attr in _OwnList.CHANGES) or super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        # Jinja2's own returns an Undefined that only raises when it is used further.
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        template: str = value.__self__

        def checked(*args: Any, **kwargs: Any) -> str:
            check_format(budget.get(), template, (args, kwargs), percent=False)
            return inner(*args, **kwargs)

        return checked

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        spent = budget.get()
        spent.call(len(args) + len(kwargs))
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, (str, bytes, int, float)) or (isinstance(owner, type) and name in REFUSED_METHODS):
            args, kwargs = __self._of_method(spent, owner, name, args, kwargs)
        elif isinstance(owner, (list, tuple)) and name in _READING:
            spent.read(owner, *args)
        elif isinstance(owner, LoopContext):  # which compares what it is given, to tell whether it changed
            spent.read(*args)
        found = super().call(__context, __obj, *args, **kwargs)
        if isinstance(found, Namespace):
            spent.hold(found)
            spent.step(len(kwargs) >> 2)
        return spent.made(found, f"{name or 'a call'}()")

    @staticmethod
    def _of_method(
        spent: Budget, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a method of a string or a number, whose work and result are bounded."""
        if name in REFUSED_METHODS:
            raise SecurityError(f"{name}() is not available in chat templates")
        # Jinja2 adds arguments of its own for callables that take a context, which methods do not.
        named = {key: value for key, value in kwargs.items() if not key.startswith("_")}
        spent.read(owner, *args, *named.values())
        check_method(spent, owner, name, *args, *named.values())
        check = METHOD_CHECKS.get(name)
        if check is not None:
            (_, *rest), kwargs = check(spent, owner, *args, **named)
            args = tuple(rest)
        return args, kwargs


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
