"""Prints the tables of README.md: python -m oxillama.compat"""

from oxillama.compat.chat import CHAT
from oxillama.compat.completion import COMPLETION
from oxillama.compat.keywords import rows
from oxillama.compat.settings import CONSTRUCTOR


def tables() -> str:
    """Keywords of the constructor, of completions, and of chats beside these, in Markdown."""
    parts = {
        "Llama": rows(CONSTRUCTOR),
        "create_completion": rows(COMPLETION),
        "create_chat_completion": rows(k for k in CHAT if k not in COMPLETION),
    }
    return "\n\n".join(f"### {name}\n\n{text}" for name, text in parts.items())


if __name__ == "__main__":
    print(tables())
