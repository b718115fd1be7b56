"""Syntax tree of a chat template, rewritten so that its code charges a budget: what runs without asking, asks.

Loops, literals, slices, comparisons, ``~`` and output pass through filters whose names no template can spell. Blocks of
statements begin with the charge of their size, so that a long body costs more than a short one.
"""

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

__all__ = ["EACH", "EMIT", "JOIN", "MADE", "SEEN", "SLICED", "SPENT", "Charging"]

# Names that no template can spell.
EACH, MADE, JOIN, EMIT = "<each>", "<made>", "<join>", "<emit>"
SLICED, SEEN, SPENT = "<sliced>", "<seen>", "<spent>"
_PER_UNIT = 4  # nodes of a block that take one unit of work
_OWN_CHARGE = 16  # nodes from which a block has a charge of its own, and is not counted with what holds it


class Charging(NodeTransformer):
    """Sends what a template does through the charging filters."""

    def _wrap(self, node: nodes.Expr, name: str, *given: int) -> nodes.Filter:
        arguments: list[nodes.Expr] = [nodes.Const(one, lineno=node.lineno) for one in given]
        return nodes.Filter(node, name, arguments, [], None, None, lineno=node.lineno)

    # ---- blocks

    def visit_Template(self, node: nodes.Template) -> nodes.Node:
        self.generic_visit(node)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        each = 1 + (0 if node.test is None else _weight(node.test) // _PER_UNIT)
        self.generic_visit(node)
        node.iter = self._wrap(node.iter, EACH, each)  # type: ignore[arg-type]
        self._charge(node.body, always=node.recursive)  # whose items come unseen behind the first ones
        return node

    def visit_If(self, node: nodes.If) -> nodes.Node:
        self.generic_visit(node)
        for body in (node.body, node.else_):
            self._charge(body)
        return node

    def _charged(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        self._charge(node.body, always=True)
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _charged

    def _charge(self, body: list[nodes.Node], always: bool = False) -> None:
        """Puts the charge of a block before it, if it isn't counted with what holds it."""
        weight = sum(map(_weight, body))
        if weight >= _OWN_CHARGE or (always and body):
            line = body[0].lineno
            spent = self._wrap(nodes.Const(0, lineno=line), SPENT, 1 + weight // _PER_UNIT)
            body.insert(0, nodes.ExprStmt(spent, lineno=line))

    # ---- expressions

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [
            self._wrap(
                nodes.Const(child.data, lineno=child.lineno) if isinstance(child, nodes.TemplateData) else child, EMIT
            )
            for child in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap(nodes.Tuple(node.nodes, "load", lineno=node.lineno), JOIN)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap(node, SLICED) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Charges the second of two values that are compared; a constant bounds what is read of the first."""
        self.generic_visit(node)
        before: nodes.Node = node.expr
        for operand in node.ops:
            inside = operand.op in ("in", "notin")
            if not isinstance(operand.expr, nodes.Const) and (inside or not isinstance(before, nodes.Const)):
                operand.expr = self._wrap(operand.expr, SEEN)
            before = operand.expr
        return node

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node  # type: ignore[no-any-return]
        children = list(node.iter_child_nodes())
        return node if all(isinstance(child, nodes.Const) for child in children) else self._wrap(node, MADE)

    visit_Tuple = visit_Dict = _literal

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap(node, MADE)


def _weight(node: nodes.Node) -> int:
    """Nodes that run with a node, without the blocks in it that have a charge of their own."""
    weight, blocks = 1, _blocks(node)
    for name in node.fields:
        inner = getattr(node, name, None)
        if name in blocks:
            own = sum(map(_weight, inner or ()))
            weight += own if isinstance(node, nodes.If | nodes.For) and own < _OWN_CHARGE else 0
        elif isinstance(inner, nodes.Node):
            weight += _weight(inner)
        elif isinstance(inner, list):
            weight += sum(_weight(one) for one in inner if isinstance(one, nodes.Node))
    return weight


def _blocks(node: nodes.Node) -> tuple[str, ...]:
    """The names of the fields with blocks that run with a charge of their own, if they are long."""
    if isinstance(node, nodes.If):
        return ("body", "else_")
    return ("body",) if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) else ()
