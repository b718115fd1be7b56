"""JSON Schema compiler: schemas to grammars.

`compiler` is the entry; `tableau` and `keywords` expand a demand on a value into branches without alternatives,
`negation` has the negations, `disjoint` finds schemas that exclude each other, `documents` resolves references;
`numbers`, `strings`, `arrays` and `objects` make expressions from the pieces in `json_text`.
"""

from oxillama.grammar.json_schema.compiler import JsonSchemaCompiler

__all__ = ["JsonSchemaCompiler"]
