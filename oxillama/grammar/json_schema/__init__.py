"""JSON schemas to grammars.

`compiler` drives; `tableau` and `keywords` bring a demand on a value into branches without alternatives, `negation`
gives the opposites, `disjoint` tells at a glance what excludes what, `documents` finds references; `numbers`,
`strings`, `arrays` and `objects` make expressions, from the pieces in `texts`.
"""

from oxillama.grammar.json_schema.compiler import JsonSchemaCompiler

__all__ = ["JsonSchemaCompiler"]
