"""Which branches of a package an input takes, and how often: the sources are rewritten as they are imported.

Every function, branch, loop body, part of a condition and outcome of a comparison is a place with a number. A place is
counted each time it is passed; that is also the measure of work, which no load of the machine changes.
"""

import ast
import builtins
import operator
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from itertools import islice
from threading import get_ident
from typing import ClassVar

__all__ = ["WorkExceeded", "begin", "compared", "features", "install", "n_places", "numbers", "words"]

HIT, COMPARE = "__fuzz_hit__", "__fuzz_compare__"
OPERATORS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
CODES = {kind: i for i, kind in enumerate(OPERATORS)}
FUNCTIONS = tuple(OPERATORS.values())
CONTAINERS = dict | set | frozenset | tuple | list
MAX_PAIRS = 400

words = set()  # constants of the sources that may be keys of some format
numbers = set()  # and those that may be kinds, versions or limits


class WorkExceeded(BaseException):
    """A place was passed more often than an input of that size may need: a BaseException, so that nobody handles it."""


class _State:
    """Of the process: there is one set of rewritten modules."""

    seen: ClassVar = {}
    most = 1 << 62
    pairs: ClassVar = None
    n_places = 0
    thread = 0


def n_places():
    """Places known so far."""
    return _State.n_places


def begin(most=1 << 62, *, compare=False):
    """Forgets what was counted. most: how often a place may be passed. compare: keep what is compared."""
    _State.seen, _State.most, _State.pairs, _State.thread = {}, most, {} if compare else None, get_ident()


def features():
    """What the input did: places, each with a class of how often (1, 2, 3, 4..7, 8..15, 16..31, 32..127, more)."""
    return {place << 3 | _bucket(n) for place, n in _State.seen.items()}


def compared():
    """Pairs of unequal values that were compared, in the order of the first time."""
    return list(_State.pairs or ())


def _bucket(n):
    return n - 1 if n < 4 else 3 if n < 8 else 4 if n < 16 else 5 if n < 32 else 6 if n < 128 else 7


def _hit(place):
    seen = _State.seen
    n = seen[place] = seen.get(place, 0) + 1
    # Another thread than the caller's must not die: the engine would have nobody to compute, and wait.
    if n > _State.most and _State.thread == get_ident():
        _State.most = 1 << 62
        raise WorkExceeded(f"place {place} was passed {n} times")


def _compare(place, code, a, b):
    result = FUNCTIONS[code](a, b)
    if result is True:
        _hit(place)
    elif result is False:
        _hit(place + 1)
    if _State.pairs is not None and len(_State.pairs) < MAX_PAIRS:
        _keep(a, b)
    return result


def _keep(a, b):
    if _is_plain(a):
        for other in islice(b, 40) if isinstance(b, CONTAINERS) else (b,):
            if _is_plain(other) and other != a:
                _State.pairs[a, other] = None
                _State.pairs[other, a] = None


def _is_plain(value):
    if isinstance(value, int):
        return not isinstance(value, bool) and -(1 << 63) <= value < 1 << 64
    return isinstance(value, str | bytes) and 0 < len(value) <= 64


class _Rewriter(ast.NodeTransformer):
    def place(self, n=1):
        first = _State.n_places
        _State.n_places += n
        return ast.Constant(first)

    def call(self):
        return ast.Call(ast.Name(HIT, ast.Load()), [self.place()], [])

    def counted(self, body):
        """A body whose first step, behind a docstring, is to be counted."""
        start = int(isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant))
        return [*body[:start], ast.Expr(self.call()), *body[start:]]

    def either(self, value):
        return ast.BoolOp(ast.Or(), [self.call(), value])

    def visit(self, node):
        node = super().visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler | ast.match_case):
            node.body = self.counted(node.body)
        elif isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While):
            node.body = self.counted(node.body)
            if node.orelse:
                node.orelse = self.counted(node.orelse)
        elif isinstance(node, ast.Lambda):
            node.body = self.either(node.body)
        elif isinstance(node, ast.IfExp):
            node.body, node.orelse = self.either(node.body), self.either(node.orelse)
        return node

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        node.values = [node.values[0], *map(self.either, node.values[1:])]
        return node

    def visit_ListComp(self, node):
        self.generic_visit(node)
        node.elt = self.either(node.elt)
        return node

    visit_SetComp = visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node):
        self.generic_visit(node)
        node.value = self.either(node.value)
        return node

    def visit_Compare(self, node):
        self.generic_visit(node)
        code = CODES.get(type(node.ops[0]))
        if len(node.ops) > 1 or code is None:
            return node
        arguments = [self.place(2), ast.Constant(code), node.left, node.comparators[0]]
        return ast.Call(ast.Name(COMPARE, ast.Load()), arguments, [])

    def visit_Constant(self, node):
        if isinstance(node.value, str) and 0 < len(node.value) <= 40 and " " not in node.value:
            words.add(node.value)
        elif type(node.value) is int and 16 < node.value < 1 << 64:
            numbers.add(node.value)
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname):
        path = self.get_filename(fullname)
        tree = _Rewriter().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Finder:
    def __init__(self, prefixes):
        self.prefixes = prefixes

    def find_spec(self, name, path, target=None):
        if not any(name == p or name.startswith(p + ".") for p in self.prefixes):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install(prefixes):
    """Rewrites modules of these names, and below them, when they are imported from now on.

    Raises RuntimeError for those that are imported already, which would not be seen.
    """
    early = [name for name in sys.modules if any(name.startswith(p) for p in prefixes)]
    if early:
        raise RuntimeError(f"already imported, and so not seen: {', '.join(sorted(early))}")
    setattr(builtins, HIT, _hit)
    setattr(builtins, COMPARE, _compare)
    sys.meta_path.insert(0, _Finder(tuple(prefixes)))
