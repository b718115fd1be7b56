"""Handlers of chats with pictures, by the names of the replaced package. Pictures can't be read: none can be made."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from oxillama.errors import UnsupportedModelError

__all__ = [
    "Gemma4ChatHandler",
    "Llama3VisionAlpha",
    "Llama3VisionAlphaChatHandler",
    "Llava15ChatHandler",
    "Llava16ChatHandler",
    "MTMDChatHandler",
    "MiniCPMv26ChatHandler",
    "MoondreamChatHandler",
    "NanoLlavaChatHandler",
    "ObsidianChatHandler",
    "Qwen25VLChatHandler",
]


class MTMDChatHandler:
    """A handler of pictures. Raises UnsupportedModelError, which says what to do instead, when one is made."""

    DEFAULT_SYSTEM_MESSAGE: ClassVar[str | None] = None
    CHAT_FORMAT: ClassVar[str | None] = None

    def __init__(self, *args: Any, **given: Any) -> None:
        self._refuse()

    @classmethod
    def from_pretrained(cls, *args: Any, **given: Any) -> NoReturn:
        """Refuses files of the Hugging Face Hub likewise: nothing is downloaded."""
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise UnsupportedModelError(
            f"{cls.__name__} reads pictures, which can't be read yet: leave chat_handler out, and give messages of "
            "text alone"
        )


class Llava15ChatHandler(MTMDChatHandler):
    """The handler of LLaVA 1.5."""


class Llava16ChatHandler(Llava15ChatHandler):
    """The handler of LLaVA 1.6."""


class ObsidianChatHandler(Llava15ChatHandler):
    """The handler of Obsidian."""


class MoondreamChatHandler(Llava15ChatHandler):
    """The handler of Moondream 2."""


class NanoLlavaChatHandler(Llava15ChatHandler):
    """The handler of nanoLLaVA."""


class Llama3VisionAlphaChatHandler(Llava15ChatHandler):
    """The handler of llama-3-vision-alpha."""


Llama3VisionAlpha = Llama3VisionAlphaChatHandler


class MiniCPMv26ChatHandler(Llava15ChatHandler):
    """The handler of MiniCPM-V 2.6."""


class Qwen25VLChatHandler(Llava15ChatHandler):
    """The handler of Qwen2.5-VL."""


class Gemma4ChatHandler(MTMDChatHandler):
    """The handler of Gemma 4."""
