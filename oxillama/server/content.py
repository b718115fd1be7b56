"""Content and tools of other kinds than are read: what of them is text, what is left out, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oxillama.server.errors import bad_value
from oxillama.server.kinds import LEFT_OUT, check_depth
from oxillama.server.reading import Reading

__all__ = ["other_content", "vendor_tool"]

# What changes the answer and can't be had: its kinds, by what they are.
_UNREADABLE = {
    **dict.fromkeys(
        ("image", "image_url", "input_image", "computer_screenshot", "image_file"), "pictures are not read"
    ),
    **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), "sound is not read"),
    **dict.fromkeys(("video", "video_url", "input_video"), "videos are not read"),
    **dict.fromkeys(("file", "input_file", "container_upload"), "files are not read: send their text"),
    "item_reference": "nothing is kept: send the item itself",
}
_TEXT_SOURCES = ("text", "content")
# Where the text of a block stands, in the order in which it is read.
_KEYS = ("title", "context", "source", "url", "tool_name", "text", "content")
_DEPTH = 8


def other_content(place: str, kind: str, value: dict[str, Any], reading: Reading) -> Any:
    """The text of a block, part or item of another kind as a part; LEFT_OUT for one without any.

    What else it has is left out and said. A document of text is read whole. Raises ApiError for pictures, sound, video
    and files, which an answer would miss.
    """
    why = _UNREADABLE.get(kind)
    if kind == "document" and not _is_text(value):
        why = "documents are read as text alone: send their text"
    if why is not None:
        own = f"{place}.{kind}" if kind in value else f"{place}.type"
        raise bad_value(own, f"{own}: {why}", "unsupported_parameter")
    check_depth(place, value, _DEPTH)
    if kind != "document":
        reading.leave_out(f"{place}.type={kind:.64}", "there are no such parts here", "content.type")
    text = "\n".join(_texts(value))
    return {"type": "text", "text": text} if text else LEFT_OUT


def _is_text(document: dict[str, Any]) -> bool:
    source = document.get("source")
    return isinstance(source, dict) and source.get("type") in _TEXT_SOURCES


def _texts(value: Any) -> Iterator[str]:
    """The texts of a block, in order."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        keys = (*_KEYS, "data") if value.get("type") == "text" else _KEYS
        for key in keys:
            yield from _texts(value.get(key))


def vendor_tool(place: str, kind: str, value: dict[str, Any], reading: Reading) -> Any:
    """LEFT_OUT for a tool that only its vendor can run."""
    reading.leave_out(f"{place}.type={kind:.64}", "no such tool can be run here", "tools.type")
    return LEFT_OUT
