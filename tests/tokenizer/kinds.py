"""Small vocabularies of each kind that files have, which name all their special tokens."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from tests.tokenizer.build import P, by_score, byte_level

# The tokens of BERT's vocabulary before its first words, at their usual ids: 101 and 102 begin and end a text.
_BERT = ["[PAD]", *(f"▁[unused{i}]" for i in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_BERT_IDS = {"unknown": 100, "seperator": 102, "padding": 0, "cls": 101, "mask": 103}
# Keys of a combination, and the values that each has: not there, true, false.
KEYS = ("add_bos_token", "add_eos_token", "add_sep_token")
VALUES = {"-": None, "t": True, "f": False}


def _ids(**ids: int) -> dict[str, object]:
    return {f"{P}{name}_token_id": token for name, token in ids.items()}


def _types(*kinds: int) -> np.ndarray:
    return np.array(kinds, np.int32)


def _bert(**more: int) -> dict[str, object]:
    tokens = [*_BERT, "▁hello", "▁world", "ing"]
    types = _types(3, *[1] * 99, 3, 3, 3, 3, 1, 1, 1)
    return {
        "general.architecture": "bert",
        P + "model": "bert",
        P + "pre": "jina-v2-en",
        P + "tokens": tokens,
        P + "token_type": types,
        **_ids(**_BERT_IDS, **more),
    }


def _spm() -> dict[str, object]:
    meta = by_score(
        ["▁hello", "▁", *"helo", "▁h", "▁he", "▁hel", "▁hell"], [-1.0, -2.0, *[-3.0] * 4, -1.5, -1.4, -1.3, -1.2]
    )
    types = np.asarray(meta[P + "token_type"], np.int32)
    return meta | {P + "token_type": types} | _ids(bos=1, eos=2, unknown=0, seperator=2)


def _unigram(bos: bool) -> dict[str, object]:
    meta = {
        "general.architecture": "bert" if bos else "t5encoder",
        P + "model": "t5",
        P + "tokens": ["<s>", "<pad>", "</s>", "<unk>", "▁hello", "▁", "▁world"],
        P + "scores": np.array([0, 0, 0, 0, -1, -2, -3], np.float32),
        P + "token_type": _types(3, 3, 3, 2, 1, 1, 1),
        P + "add_space_prefix": True,
    }
    first = {"bos": 0, "cls": 0} if bos else {}
    return meta | _ids(**first, eos=2, unknown=3, seperator=2, padding=1)


def _bpe(pre: str) -> dict[str, object]:
    meta = byte_level(["h e", "l l", "he ll", "hell o"], ("<s>", "</s>", "<sep>"), pre)
    n = len(meta[P + "tokens"])  # type: ignore[arg-type]
    types = np.asarray(meta[P + "token_type"], np.int32)
    return meta | {P + "token_type": types} | _ids(bos=n - 3, eos=n - 2, seperator=n - 1)


def _utf8_bpe(model: str, pre: str) -> dict[str, object]:
    pieces = ["h", "e", "l", "o", "\n", "he", "ll", "hell", "hello", "▁"]
    return {
        "general.architecture": "gemma4",
        P + "model": model,
        P + "pre": pre,
        P + "tokens": [
            "<pad>",
            "<eos>",
            "<bos>",
            "<unk>",
            "<sep>",
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *pieces,
        ],
        P + "scores": np.zeros(5 + 256 + len(pieces), np.float32),
        P + "token_type": _types(3, 3, 3, 2, 3, *[6] * 256, *[1] * len(pieces)),
        P + "merges": ["h e", "l l", "he ll", "hell o"],
        **_ids(bos=2, eos=1, unknown=3, seperator=4, padding=0),
    }


def _rwkv() -> dict[str, object]:
    pieces = [bytes([i]) for i in range(256)] + [b"hello"]
    return {
        "general.architecture": "rwkv7",
        P + "model": "rwkv",
        P + "tokens": ["<s>", *(repr(piece)[2:-1] for piece in pieces)],
        P + "token_type": _types(3, *[1] * len(pieces)),
        **_ids(bos=0, eos=0, seperator=0),
    }


KINDS: dict[str, Callable[[], dict[str, object]]] = {
    "bert as converters write it": lambda: _bert(bos=101, eos=102),
    "bert as older converters wrote it": _bert,
    "spm": _spm,
    "unigram with a beginning": lambda: _unigram(True),
    "unigram without a beginning": lambda: _unigram(False),
    "gemma4": lambda: _utf8_bpe("gemma4", "gemma4"),
    "bpe granite-embed-multi-311m": lambda: _utf8_bpe("gpt2", "granite-embed-multi-311m"),
    "rwkv": _rwkv,
} | {
    f"bpe {pre}": lambda pre=pre: _bpe(pre)  # type: ignore[misc]
    for pre in (
        *("default", "gpt-2", "llama-bpe", "tekken", "chameleon", "qwen2", "roberta-bpe", "jina-v1-en", "jina-v2-code"),
        *(
            "jina-v2-es",
            "jina-v2-de",
            "modern-bert",
            "granite-embed-multi-97m",
            "jina-v5-nano",
            "smollm",
            "chatglm-bpe",
        ),
    )
}


def combinations() -> Iterator[tuple[str, dict[str, bool | None]]]:
    """Every combination of the keys, with a name that has a character for each: "-", "t" or "f"."""
    for letters in product(VALUES, repeat=len(KEYS)):
        yield "".join(letters), {key: VALUES[letter] for key, letter in zip(KEYS, letters, strict=True)}
