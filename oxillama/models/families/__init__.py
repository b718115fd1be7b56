"""Families of architectures: each module says what its members are made of, and registers them when it is imported."""

__all__ = ["FAMILIES"]

FAMILIES = (
    "llama",
    "llama4",
    "qwen",
    "gemma",
    "gemma4",
    "gpt",
    "cohere",
    "olmo",
    "phi",
    "glm",
    "experts",
    "sparse",
    "muse",
    "mistral",
    "minicpm",
    "deci",
    "bitnet",
    "apertus",
    "baichuan",
    "relatives",
    "recurrent",
    "rwkv",
    "delta",
    "deepseek",
    "kimi",
    "bert",
    "t5",
    "refused",
)
