"""File signatures: the first bytes of a GGUF file, or those of another format."""

from oxillama.errors import GGUFError
from oxillama.gguf.cursor import Cursor

__all__ = ["MAGIC", "VERSIONS", "check_magic", "read_version"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_LOOKS_LIKE = (
    (b"FUGG", "a GGUF file with its bytes swapped"),
    (b"lmgg", "a GGML file, from before GGUF; convert the original model again"),
    (b"tjgg", "a GGJT file, from before GGUF; convert the original model again"),
    (b"fmgg", "a GGMF file, from before GGUF; convert the original model again"),
    (b"algg", "a GGLA adapter, from before GGUF; convert the original adapter again"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file itself with git lfs pull"),
    (b"PK\x03\x04", "a zip archive or PyTorch checkpoint; convert it to GGUF"),
    (b"\x80\x02", "a Python pickle or PyTorch checkpoint; convert it to GGUF"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (b"<", "an HTML or XML page, perhaps the error page of a download"),
    (b"{", "JSON, perhaps the error answer of a download"),
    (b"\0\0\0\0", "zeros, perhaps a download that was not finished"),
)


def check_magic(cursor: Cursor) -> None:
    """Moves past the magic. Raises GGUFError, which names the likely format, for a file without it."""
    head = cursor.data[:32].tobytes()
    if not head:
        raise GGUFError(f"{cursor.label}: the file is empty")
    if not MAGIC.startswith(head[:4]):
        hint = next((f"; it looks like {what}" for start, what in _LOOKS_LIKE if head.lstrip().startswith(start)), "")
        if head[8:9] == b"{":
            hint = "; it looks like safetensors; convert it to GGUF"
        cursor.fail("magic", f"{head[:4]!r} instead of {MAGIC!r}: not a GGUF file{hint}")
    cursor.skip(4, "magic")


def read_version(cursor: Cursor) -> int:
    """Version 2 or 3, little-endian. Raises GGUFError, which names the version, for others."""
    at = cursor.position
    version = cursor.u32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, *VERSIONS):
            cursor.fail("version", f"a big-endian file (version {swapped}); only little-endian files are read", at)
        old = ": convert the model again with a newer tool" if version == 1 else ""
        cursor.fail("version", f"GGUF version {version}; versions 2 and 3 are read{old}", at)
    return version
