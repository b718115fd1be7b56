"""Content and tools of other kinds than are read: what of them is text, what is left out, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

from oxillama.server.errors import bad_value
from oxillama.server.field_types import LEFT_OUT, Other, Values
from oxillama.server.reading import Reading

__all__ = ["not_shown", "other_content", "result_content", "vendor_tool"]

# What changes the answer and can't be had: its kinds, what they are, and the remedy.
_UNREADABLE = {
    **dict.fromkeys(("image", "image_url", "input_image", "computer_screenshot", "image_file"), ("pictures", "")),
    **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), ("sound", "")),
    **dict.fromkeys(("video", "video_url", "input_video"), ("videos", "")),
    **dict.fromkeys(("file", "input_file", "container_upload"), ("files", ": send their text")),
    "item_reference": ("references to kept items", ": nothing is kept; send the item itself"),
}
_DOCUMENT = ("documents that are no text", ": send their text")
_TEXT_SOURCES = ("text", "content")
_OF_DOCUMENTS = ("type", "source", "title", "context", "citations", "cache_control")
# Where the text of a block stands, in the order in which it is read.
_KEYS = ("title", "context", "source", "url", "tool_name", "text", "content")
_DEPTH = 8  # of lists and objects in a block that texts are looked for in


def other_content(place: str, kind: str, value: Values, reading: Reading) -> object:
    """The text of a block, part or item of another kind as a part; LEFT_OUT for one without any.

    What else it has is left out and said. A document of text is read whole, without citations. Raises ApiError for
    pictures, sound, video and files, which an answer would miss.
    """
    if (found := _unreadable(kind, value)) is not None:
        own = f"{place}.{kind}" if kind in value else f"{place}.type"
        raise bad_value(own, f"{own}: {found[0]} are not read{found[1]}", "unsupported_parameter")
    return _as_text(place, kind, value, reading, other_content)


def _as_text(place: str, kind: str, value: Values, reading: Reading, read: Other) -> object:
    """Text of content that can be had, for `other_content`. read: what reads the parts of a document."""
    if kind == "refusal" and isinstance(value.get("refusal"), str):  # of an earlier answer
        return {"type": "text", "text": value["refusal"]}
    if kind == "document":
        _say_missing(place, value, reading, read)
    else:
        reading.leave_out(f"{place}.type={kind:.64}", "there are no such parts here", "content.type")
    text = "\n".join(_texts(value))
    return {"type": "text", "text": text} if text else LEFT_OUT


def _say_missing(place: str, document: Values, reading: Reading, read: Other) -> None:
    """Says what of a document isn't read: parts that are no text, and fields."""
    for name, given in document.items():
        if name == "citations" and given not in (None, {"enabled": False}):
            reading.leave_out(f"{place}.citations", "answers cite nothing", "content.citations")
        elif name not in _OF_DOCUMENTS:
            reading.leave_out(f"{place}.{name:.64}", label="unknown")
    parts = document["source"].get("content")
    for i, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            read(f"{place}.source.content[{i}]", kind, part, reading)


def result_content(place: str, kind: str, value: Values, reading: Reading) -> object:
    """`other_content` of what a tool gave: pictures and files are left out, and a text in their place says so.

    An agent sends the results of its tools with every further request, and so could never go on.
    """
    if (found := _unreadable(kind, value)) is None:
        return _as_text(place, kind, value, reading, result_content)
    reading.leave_out(f"{place}.type={kind:.64}", f"{found[0]} are not read", "content.type")
    return {"type": "text", "text": not_shown(found[0])}


def not_shown(what: str) -> str:
    """A text that tells the model of content that it doesn't see."""
    return f"[{what} are not shown: this model reads text alone]"


def _unreadable(kind: str, value: Values) -> tuple[str, str] | None:
    """Name of content that can't be had, and a remedy; None for other content."""
    return _DOCUMENT if kind == "document" and not _is_text(value) else _UNREADABLE.get(kind)


def _is_text(document: Values) -> bool:
    source = document.get("source")
    return isinstance(source, dict) and source.get("type") in _TEXT_SOURCES


def _texts(value: object, depth: int = _DEPTH) -> Iterator[str]:
    """The texts of a block, in order, but for those that lie deeper."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list) and depth:
        for one in value:
            yield from _texts(one, depth - 1)
    elif isinstance(value, dict) and depth:
        keys = (*_KEYS, "data") if value.get("type") == "text" else _KEYS
        for key in keys:
            yield from _texts(value.get(key), depth - 1)


def vendor_tool(place: str, kind: str, value: Values, reading: Reading) -> object:
    """LEFT_OUT for a tool that only its vendor can run."""
    reading.leave_out(f"{place}.type={kind:.64}", "no such tool can be run here", "tools.type")
    return LEFT_OUT
