"""Tensor formats by GGUF id and by name: the table of csrc/ox_formats.def in Python."""

from functools import cache
from typing import NamedTuple

from oxillama.errors import QuantError

__all__ = ["REMOVED", "Format", "all_formats", "format_by_id", "format_by_name"]

# Ids of formats that ggml has dropped; no program can read them any more.
REMOVED = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip


class Format(NamedTuple):
    """A tensor format: rows are whole blocks of ``block_values`` values in ``block_bytes`` bytes."""

    id: int
    name: str
    block_values: int
    block_bytes: int

    def nbytes(self, n_values: int) -> int:
        """Bytes of ``n_values`` values, a multiple of ``block_values``."""
        return n_values // self.block_values * self.block_bytes


@cache
def all_formats() -> tuple[Format, ...]:
    """Every format that a GGUF file may name, whether or not there are kernels for it."""
    from oxillama.kernels import _table

    return tuple(Format(*row) for row in _table.formats())


@cache
def _by_id() -> dict[int, Format]:
    return {f.id: f for f in all_formats()}


@cache
def _by_name() -> dict[str, Format]:
    return {f.name: f for f in all_formats()}


def format_by_id(type_id: int) -> Format | None:
    """The format with this GGUF id, None if there is none."""
    return _by_id().get(type_id)


def format_by_name(name: str) -> Format:
    """The format with this name, in any case; QuantError if there is none."""
    found = _by_name().get(name.upper()) if isinstance(name, str) else None
    if found is None:
        raise QuantError(f"unknown tensor format {name!r}; known: {', '.join(_by_name())}")
    return found
