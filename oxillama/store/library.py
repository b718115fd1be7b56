"""Names of Ollama's library, which people type by habit, and repositories of the Hub with these models."""

from __future__ import annotations

import re

from oxillama.store.names import HUB, folded

__all__ = ["hub_name_of", "is_library_like"]

# Name and tag -> repository; a name alone is that of its usual size.
_KNOWN = {
    "llama3.2": "bartowski/Llama-3.2-3B-Instruct-GGUF",
    "llama3.2:1b": "bartowski/Llama-3.2-1B-Instruct-GGUF",
    "llama3.2:3b": "bartowski/Llama-3.2-3B-Instruct-GGUF",
    "llama3.1": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
    "llama3.1:8b": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
    "llama3": "bartowski/Meta-Llama-3-8B-Instruct-GGUF",
    "qwen2.5": "Qwen/Qwen2.5-7B-Instruct-GGUF",
    **{f"qwen2.5:{n.lower()}": f"Qwen/Qwen2.5-{n}-Instruct-GGUF" for n in ("0.5B", "1.5B", "3B", "7B", "14B", "32B")},
    "qwen2.5-coder": "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF",
    **{f"qwen2.5-coder:{n.lower()}": f"Qwen/Qwen2.5-Coder-{n}-Instruct-GGUF" for n in ("0.5B", "1.5B", "3B", "7B")},
    "qwen3": "Qwen/Qwen3-8B-GGUF",
    **{f"qwen3:{n.lower()}": f"Qwen/Qwen3-{n}-GGUF" for n in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
    "gemma3": "ggml-org/gemma-3-4b-it-GGUF",
    **{f"gemma3:{n}": f"ggml-org/gemma-3-{n}-it-GGUF" for n in ("1b", "4b", "12b", "27b")},
    "mistral": "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
    "mistral:7b": "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
    "phi4": "microsoft/phi-4-gguf",
    "gpt-oss": "ggml-org/gpt-oss-20b-GGUF",
    "gpt-oss:20b": "ggml-org/gpt-oss-20b-GGUF",
    "gpt-oss:120b": "ggml-org/gpt-oss-120b-GGUF",
    "smollm2": "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
    "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
    "tinyllama": "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
    "nomic-embed-text": "nomic-ai/nomic-embed-text-v1.5-GGUF",
}  # fmt: skip
# Families whose names alone are those of models, and those that are words, too, and need a number or a tag.
_FAMILIES = (
    r"llama|codellama|tinyllama|qwen|qwq|gemma|codegemma|medgemma|mistral|mixtral|ministral|magistral|devstral|codestral"
    r"|deepseek|smollm|gpt-oss|olmo|starcoder|vicuna|nous-hermes|openchat|stablelm|command-r|exaone|internlm|minimax"
    r"|nemotron|wizardlm|llava|bakllava|nomic-embed|mxbai-embed|all-minilm|bge-m|snowflake-arctic|embeddinggemma"
)
_WORDS = r"phi|yi|granite|falcon|dolphin|hermes|zephyr|aya|glm|kimi|solar|orca|moondream|cogito|lfm|bge"
_LIBRARY = re.compile(
    rf"(?:library/)?(?:(?:{_FAMILIES})(?:[\d.-][a-z\d._-]*)?(?::[\w.-]+)?"
    rf"|(?:{_WORDS})(?:[\d.-]*\d[a-z\d._-]*(?::[\w.-]+)?|:[\w.-]+)"
    r"|[a-z][a-z\d._-]*:(?:latest|e?\d+(?:\.\d+)?[bm](?:-[\w.-]+)?))"
)
LONGEST = 128


def is_library_like(given: str) -> bool:
    """Whether a text has the form of a name of Ollama's library: llama3.2, qwen3:8b, NAME:latest."""
    return len(given) <= LONGEST and _LIBRARY.fullmatch(given) is not None


def hub_name_of(given: str) -> str | None:
    """The name on the Hub of a model of Ollama's library, of those that most people ask for; None for another one."""
    plain = folded(given).removeprefix("library/").removesuffix(":latest")
    repo = _KNOWN.get(plain)
    return None if repo is None else f"{HUB}{repo}"
