"""Small models of every kind that sentencepiece trains, as metadata of GGUF files.

`python -m tests.tokenizer.trained` trains those of `RECORDED` and writes data/sentencepiece_kinds.json: the metadata,
and the ids that sentencepiece (0.2.3) gives for odd texts. It needs the package sentencepiece, and nothing of oxillama.
"""

import base64
import io
import json
import random
import struct
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

P = "tokenizer.ggml."
FILE = Path(__file__).parent / "data" / "sentencepiece_kinds.json"

SYMBOLS = ["<tool>", "<ab>", "ab", "▁▁", "  ", "the end", "é", "각", "\n\n"]
KEPT: dict[str, Any] = {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": KEPT,
    "bytes": {**KEPT, "byte_fallback": True},
    "no prefix": {**KEPT, "add_dummy_prefix": False},
    "spaces removed": {"normalization_rule_name": "identity"},
    "marks behind": {"treat_whitespace_as_suffix": True},
    "marks behind, spaces kept": {**KEPT, "treat_whitespace_as_suffix": True, "byte_fallback": True},
    "symbols": {**KEPT, "user_defined_symbols": SYMBOLS, "byte_fallback": True},
    "symbols, no prefix": {**KEPT, "user_defined_symbols": SYMBOLS, "add_dummy_prefix": False},
    "digits": {**KEPT, "split_digits": True},
    "phrases": {"split_by_whitespace": False, "split_by_unicode_script": False},
    "control symbols": {**KEPT, "control_symbols": ["<ctl>", "the"]},
    "symbols and own rules": {"own_rules": True, "user_defined_symbols": SYMBOLS},
    "own rules": {"own_rules": True, "remove_extra_whitespaces": False},
    # Of which the tables have 240 kB.
    **{rule: {"normalization_rule_name": rule} for rule in ("nmt_nfkc", "nfkc", "nfkc_cf", "nmt_nfkc_cf")},
    "nmt_nfkc and symbols": {"user_defined_symbols": SYMBOLS},
}
KINDS = [f"{model} {name}" for model in ("unigram", "bpe") for name in OPTIONS]
RECORDED = [
    *(f"unigram {name}" for name in ("symbols and own rules", "own rules", "marks behind, spaces kept", "symbols")),
    *(f"bpe {name}" for name in ("symbols", "symbols, no prefix", "spaces removed", "own rules", "control symbols")),
]

PIECES = [
    *("Hello world", "the quick brown fox", "the end", "tthe endd", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n"),
    *("▁", "▁▁", " ▁", "▁ ", "a▁b", "<s>", "</s>", "<unk>", "<pad>", "<tool>", "<ctl>", "<ab>", "ab", "abab", "<0x41>"),
    *("각", "한국어 텍스트", "ᄒ", "ᅡ", "ᆫ", "ㅎㅏㄴ", "ﾊﾟ", "ｶﾞｷﾞ", "ﾊﾞﾅﾅ", "カタカナ", "パ", "ﾞ", "ﾟ"),
    *(
        "é",
        "ñ",
        "ǖ",
        "ệ",
        "e\u0323\u0302",
        "e\u0302\u0323",
        "\u0301",
        "Å",
        "\u212b",
        "ﬁ",
        "ﬃ",
        "①",
        "㈱",
        "½",
        "ｆｕｌｌ",
    ),
    *("العربية", "שלום", "हिन्दी", "ไทยน้ำ", "Привет", "Й", "Ελληνικά", "ΐ", "汉字", "日本語", "🙂", "👩‍👧", "🇩🇪", "𝔘𝔫𝔦"),
    *map(chr, (0, 1, 8, 0x1F, 0x7F, 0x85, 0xA0, 0xAD, 0x200B, 0x200C, 0x200D, 0x202E, 0x2028, 0x2060, 0xFEFF, 0xFFFD)),
    *("\uffff", "\u3000", "\ufe0f", "12345", "3.14", "aaaaaaa", "!!!!!!", "----", "I'm", "ABC", "ß", "İ", "ı"),
]
WORDS = "the of and to in is that for it as was with be by on not he his but at are this have from or had an"
# The characters that the rules of `own_rules` are about: canonical compositions, and compatible forms.
COMPOSED = "éñǖệÅЙΐパガギ각한국어텍스트"
COMPATIBLE = "ﬁﬃ①㈱½ｆｕｌ\u3000\u212b"


def texts(count: int, seed: int) -> list[str]:
    """Each of `PIECES`, and random texts of them, composed and decomposed."""
    draw, made = random.Random(seed), list(PIECES)
    while len(made) < count:
        kind, some = draw.random(), [draw.choice(PIECES) for _ in range(draw.randint(1, 6))]
        text = some[0] * draw.randint(2, 20) if kind < 0.15 else (" " if kind < 0.4 else "").join(some)
        made.append(unicodedata.normalize(draw.choice(["NFC", "NFD", "NFKD"]), text) if draw.random() < 0.3 else text)
    return made[:count]


def _corpus() -> Iterator[str]:
    draw = random.Random(7)
    words = WORDS.split()
    for text in texts(900, 77):
        yield text.replace("\0", "")
        yield " ".join(draw.choices(words, k=10))


def _own_rules() -> str:
    """Rules as sentencepiece reads them from a file: code points, a tab, code points."""
    rules = {unicodedata.normalize("NFD", char): char for char in COMPOSED}
    rules |= {"ﾊﾟ": "パ", "ﾊﾞ": "バ", "ｶﾞ": "ガ", "ﾊ": "ハ", "ｶ": "カ", "ﾞ": "\u3099", "ﾟ": "\u309a", "e\u0302": "ê"}
    rules |= {char: unicodedata.normalize("NFKC", char) for char in COMPATIBLE} | {"\t": " ", "\n": " ", "\u200b": ""}
    rules |= {"\x01": "", "ß": "ss"}
    return "".join(f"{_points(source)}\t{_points(made)}\n" for source, made in sorted(rules.items()))


def _points(text: str) -> str:
    return " ".join(f"{ord(char):X}" for char in text)


def train(kind: str) -> bytes:
    """The model of one of `KINDS`, as sentencepiece writes it."""
    from sentencepiece import SentencePieceTrainer  # type: ignore[import-not-found, unused-ignore]

    model, _, name = kind.partition(" ")
    options, written = dict(OPTIONS[name]), io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        if options.pop("own_rules", False):
            path = Path(folder, "rules.tsv")
            path.write_text(_own_rules(), encoding="utf-8")
            options["normalization_rule_tsv"] = str(path)
        SentencePieceTrainer.train(
            sentence_iterator=_corpus(), model_writer=written, model_type=model, vocab_size=460, num_threads=1,
            hard_vocab_limit=False, character_coverage=0.98, minloglevel=2, **options,
        )  # fmt: skip
    return written.getvalue()


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protocol buffers."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        size = number() if size is None else size
        yield key >> 3, message[at : at + size]
        at += size


def metadata(model: bytes) -> dict[str, Any]:
    """A model's pieces and rules under the keys that converters write; "charsmap" is the table in base 64."""
    parts = [(field, dict(_fields(value))) for field, value in _fields(model) if field in (1, 2, 3)]
    pieces = [part for field, part in parts if field == 1]
    trainer = next(part for field, part in parts if field == 2)
    rules = next(part for field, part in parts if field == 3)
    return {
        "general.architecture": "llama",
        P + "model": {1: "t5", 2: "llama"}[trainer[3]],
        P + "tokens": [piece[1].decode() for piece in pieces],
        P + "scores": [struct.unpack("<f", piece[2])[0] for piece in pieces],
        P + "token_type": [piece.get(3, 1) for piece in pieces],
        P + "unknown_token_id": 0,
        P + "bos_token_id": 1,
        P + "eos_token_id": 2,
        P + "add_space_prefix": bool(rules.get(3, 1)),
        P + "remove_extra_whitespaces": bool(rules.get(4, 1)),
        "charsmap": base64.b64encode(rules.get(2, b"")).decode(),
    }


def main() -> None:
    from sentencepiece import SentencePieceProcessor

    found = {}
    for i, kind in enumerate(RECORDED):
        model = train(kind)
        encode = SentencePieceProcessor(model_proto=model).encode
        cases = [[text, encode(text)] for text in texts(len(PIECES) + 120, i)]
        found[kind] = {"metadata": metadata(model), "cases": cases}
    lines = [
        f"{json.dumps(kind)}:{json.dumps(found[kind], ensure_ascii=False, separators=(',', ':'))}" for kind in found
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
