"""Handlers of pictures can be imported and derived from; making one says what to do instead."""

import pytest

import oxillama.compat.llama_chat_format as formats
from oxillama.compat import picture_handlers
from oxillama.errors import UnsupportedModelError

KNOWN = (
    "Llava15ChatHandler", "Llava16ChatHandler", "MoondreamChatHandler", "NanoLlavaChatHandler", "ObsidianChatHandler",
    "Llama3VisionAlphaChatHandler", "Llama3VisionAlpha", "MiniCPMv26ChatHandler", "Qwen25VLChatHandler",
    "MTMDChatHandler", "Gemma4ChatHandler",
)  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_making_one_says_what_to_do(name):
    kind = getattr(formats, name)
    assert name in picture_handlers.__all__
    message = f"^{kind.__name__} reads pictures, .*: leave chat_handler out, and give messages of text alone$"
    for make in (lambda: kind(clip_model_path="mmproj.gguf", verbose=False), lambda: kind("mmproj.gguf")):
        with pytest.raises(UnsupportedModelError, match=message):
            make()
    with pytest.raises(UnsupportedModelError, match=message):
        kind.from_pretrained(repo_id="owner/name", filename="*mmproj*")


def test_all_are_known():
    assert sorted(picture_handlers.__all__) == sorted(KNOWN)


def test_programs_derive_from_them():
    class Own(formats.Llava15ChatHandler):
        DEFAULT_SYSTEM_MESSAGE = "You see."
        CHAT_FORMAT = "{{ messages }}"

    with pytest.raises(UnsupportedModelError, match=r"^Own reads pictures"):
        Own(clip_model_path="x")
