"""Chat formats by name: how messages are written as one text, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.chat.messages import checked_messages, joined

__all__ = ["STYLES", "Style", "written"]


@dataclass(frozen=True)
class Style:
    """Style in which a format writes messages.

    roles: what stands before a message of a role; those of other roles are left out. opening: what comes first, with
    the system message in the place of {}. default: the system message where there is none. join, ends: what stands
    after the role, and after the content (by turns). answer: what opens the assistant's turn; None for nothing.
    stop: a text that ends the answer.
    """

    roles: Mapping[str, str]
    opening: str = ""
    default: str = ""
    join: str = ""
    ends: tuple[str, ...] = ("",)
    answer: str | None = None
    stop: str | None = None


def _contents(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(role, content) of each message. Raises MessageError for messages of another form, and parts that are no text."""
    found = []
    for message in checked_messages(messages):
        content = message.get("content") or ""
        found.append((message["role"], content if isinstance(content, str) else joined(content)))
    return found


def _system(messages: Sequence[Mapping[str, Any]]) -> str:
    return next((content for role, content in _contents(messages) if role == "system"), "")


def written(style: Style, messages: Sequence[Mapping[str, Any]]) -> str:
    """The messages as one text."""
    text = style.opening.replace("{}", _system(messages) or style.default)
    shown = [(role, content) for role, content in _contents(messages) if role in style.roles]
    for i, (role, content) in enumerate(shown):
        text += style.roles[role]
        text += style.join + content + style.ends[i % len(style.ends)] if content else style.join.rstrip(" ")
    return text + (style.answer or "")


def llama_2(messages: Sequence[Mapping[str, Any]]) -> str:
    """Llama 2: the system message stands within the first message."""
    system = _system(messages)
    text = f"[INST] <<SYS>>\n{system}\n<</SYS>> " if system else " "
    shown = [(role, content) for role, content in _contents(messages) if role in ("user", "assistant")]
    for i, (role, content) in enumerate(shown):
        end = "</s>" if i % 2 else " "
        if system and i == 0:
            text += content + end
        else:
            text += ("<s>[INST]" if role == "user" else "[/INST]") + (f"{content} {end}" if content else " ")
    return text + "[/INST]"


def mistral_instruct(messages: Sequence[Mapping[str, Any]]) -> str:
    """Mistral 7B Instruct, without system messages."""
    text = ""
    for role, content in _contents(messages):
        if role == "user":
            text += f"[INST] {content}"
        elif role == "assistant":
            text += f" [/INST]{content}</s>"
    return text + " [/INST]"


def saiga(messages: Sequence[Mapping[str, Any]]) -> str:
    """Saiga, whose answers have the role bot."""
    text = ""
    for role, content in _contents(messages):
        if role in ("user", "bot", "system"):
            text += f"<s>{role}\n{content}</s>" if content else f"<s>{role}\n"
    return (text + "<s>bot").strip()


def _two(user: str, assistant: str) -> dict[str, str]:
    return {"user": user, "assistant": assistant}


def _lines(user: str, assistant: str, opening: str, end: str, stop: str | None, default: str = "") -> Style:
    """A format with the role on a line of its own."""
    roles = _two(user, assistant)
    return Style(roles, opening + end + "\n", default, "\n", (end + "\n",), assistant + "\n", stop)


def _colons(
    user: str, assistant: str, opening: str, ends: tuple[str, ...], stop: str | None = None, **more: Any
) -> Style:
    """A format with a colon after the role."""
    opening += ends[0]
    return Style(_two(user, assistant), opening, join=": ", ends=ends, stop=stop, **{"answer": f"{assistant}:"} | more)


_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions."
)
_OPENBUDDY = (
    "You are a helpful, respectful and honest INTP-T AI Assistant named Buddy. You are talking to a human "
    "User.\nAlways answer as helpfully and logically as possible, while being safe. Your answers should not include "
    "any harmful, political, religious, unethical, racist, sexist, toxic, dangerous, or illegal content. Please "
    "ensure that your responses are socially unbiased and positive in nature.\nIf a question does not make any sense, "
    "or is not factually coherent, explain why instead of answering something not correct. If you don't know the "
    "answer to a question, please don't share false information.\nYou can speak fluently in many languages, for "
    "example: English, Chinese.\nYou cannot access the internet, but you have vast knowledge, cutoff: 2021-09.\nYou "
    "are trained by OpenBuddy team, (https://openbuddy.ai, https://github.com/OpenBuddy/OpenBuddy), you are based on "
    "LLaMA and Falcon transformers model, not related to GPT or OpenAI.\n\n"
)
_ORCA = (
    "You are a helpful assistant. Please answer truthfully and write out your thinking step by step to be sure you get "
    "the right answer. If you make a mistake or encounter an error in your thinking, say so out loud and attempt to "
    "correct it. If you don't know or aren't sure about something, say so clearly. You will act as a professional "
    "logician, mathematician, and physicist. You will also act as the most appropriate type of expert to answer any "
    "particular question or solve the relevant problem; state which expert type your are, if so. Also think of any "
    "particular named expert that would be ideal to answer the relevant question or solve the relevant problem; name "
    "and act as them, if appropriate."
)
_SNOOZY = (
    "The prompt below is a question to answer, a task to complete, or a conversation to respond to; decide which and "
    "write an appropriate response."
)
_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
_LLAMA_3 = {role: _HEADER.replace("{}", role) for role in ("system", "user", "assistant")}
_GEMMA = _two("<start_of_turn>user\n", "<start_of_turn>model\n")
_END = "<|end_of_turn|>"

# As the models' publications, or the package whose names these are, write them.
STYLES: dict[str, Style] = {
    "llama-3": Style(_LLAMA_3, ends=("<|eot_id|>",), answer=_LLAMA_3["assistant"], stop="<|eot_id|>"),
    "alpaca": _colons("### Instruction", "### Response", "{}", ("\n\n", "</s>"), answer=None),
    "qwen": _lines(
        "<|im_start|>user", "<|im_start|>assistant", "<|im_start|>system\n{}", "<|im_end|>", "<|endoftext|>",
        "You are a helpful assistant.",
    ),
    "vicuna": _colons("USER", "ASSISTANT", _VICUNA, (" ", "</s>")),
    "oasst_llama": Style(
        _two("<|prompter|>", "<|assistant|>"), "[INST] <<SYS>>\n{}\n<</SYS>>\n\n", ends=("</s>",),
        answer="<|assistant|>",
    ),
    "baichuan-2": Style(_two("<reserved_106>", "<reserved_107>"), "{}", answer="<reserved_107>"),
    "baichuan": Style(_two("<reserved_102>", "<reserved_103>"), "{}", answer="<reserved_103>"),
    "openbuddy": _colons("User", "Assistant", _OPENBUDDY, ("\n",)),
    "redpajama-incite": _colons("<human>", "<bot>", "{}", ("\n",), "<human>"),
    "snoozy": _colons("### Prompt", "### Response", "{}", ("\n",), "###", default=_SNOOZY),
    "phind": _colons(
        "### User Message",
        "### Assistant",
        "### System Prompt\nYou are an intelligent programming assistant.",
        ("\n\n",),
    ),
    "intel": _colons("### User:", "### Assistant:", "### System:\n{}", ("\n",)),
    "open-orca": Style(
        _two("User", "Assistant"), _ORCA + _END + "\n", join=": ", ends=(_END + "\n",), answer="Assistant: ",
        stop="User",
    ),
    "mistrallite": Style(
        _two("<|prompter|>", "</s>\n<|assistant|>"), "<|system|>{}</s>", ends=(" ",), answer="</s>\n<|assistant|>"
    ),
    "zephyr": _lines("<|user|>\n", "<|assistant|>\n", "<|system|>\n{}", "</s>", "</s>"),
    "pygmalion": _lines("<|user|>", "<|model|>", "<|system|>{}", "\n", "\n"),
    "chatml": _lines("<|im_start|>user", "<|im_start|>assistant", "<|im_start|>system\n{}", "<|im_end|>", "<|im_end|>"),
    "chatglm3": Style(
        _two("<|user|>", "<|assistant|>"), "<|system|>\n{}", join="\n ", answer="<|assistant|>", stop="</s>"
    ),
    "openchat": _lines(
        "GPT4 Correct User: ", f"{_END}GPT4 Correct Assistant: ", "{}" + _END, _END, _END
    ),
    "gemma": Style(_GEMMA, ends=("<end_of_turn>\n",), answer=_GEMMA["assistant"], stop="<end_of_turn>\n"),
}  # fmt: skip
