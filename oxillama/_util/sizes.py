"""Numbers of bytes as text, such as 800M or 4G."""

import re

__all__ = ["read_size"]

_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(?:i?B)?", re.IGNORECASE)


def read_size(text: str) -> int | None:
    """Bytes of 800M or 4G, which are powers of 1024; None for anything else."""
    match = _SIZE.fullmatch(text)
    return None if match is None else int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
