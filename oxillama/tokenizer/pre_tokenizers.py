r"""The ``tokenizer.ggml.pre`` table: how each family of byte-pair vocabularies cuts text before merging.

A row is data only. The patterns are the ones in the ``tokenizer.json`` files that the models were published with,
in Oniguruma syntax, applied one after the other: each pattern splits every piece that the ones before it left into
matches and the text between them. Adding a family means adding its id to a row of :data:`_FAMILIES`, or a new row.
"""

from dataclasses import dataclass

__all__ = ["PreTokenizer", "known_pre_tokenizers", "pre_tokenizer"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)

# Words of mixed case, as o200k and Tekken cut them: an upper-case run, then a lower-case run.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_PUNCTUATION_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED}|{_CAPITALS}|\p{{N}}|{_PUNCTUATION_SLASH}|{_SPACES}"
_GPT4O = rf"{_CASED}{_CONTRACTIONS}?|{_CAPITALS}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_PUNCTUATION_SLASH}|{_SPACES}"
_YOUTU = rf"{_CASED}{_CONTRACTIONS}?|{_CAPITALS}{_CONTRACTIONS}?|\p{{N}}|{_PUNCTUATION_SLASH}|{_SPACES}"

# Kimi K2: as o200k, but a run of Han characters is a piece of its own (set intersection is Oniguruma's &&).
_UPPER_K2 = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER_K2 = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_K2 = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_K2}*{_LOWER_K2}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_K2}+{_LOWER_K2}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
)


def _set(ranges: str) -> str:
    """A bracket expression from hexadecimal ranges. Typed letters would not do: editors normalise look-alikes."""
    spans = [item.partition("-")[::2] for item in ranges.split()]
    return "[" + "".join(rf"\x{{{low}}}-\x{{{high or low}}}" for low, high in spans) + "]"


# The letters of the DeepSeek LLM vocabulary: alphabets that have case.
_DEEPSEEK_LETTERS = _set(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A "
    "38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF "
    "1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D "
    "1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F "
    "2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F "
    "A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943 "
)
_CJK_HANGUL = _set("4E00-9FA5 800-4E00 AC00-D7FF") + "+"
_CJK_KANA = _set("4E00-9FA5 3040-309F 30A0-30FF") + "+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_DEEPSEEK_LETTERS}+",
    r"\s?" + _set("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002") + "+",
    r"\s+$",
    _CJK_HANGUL,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_HANGUL, _DIGIT)
_ASCII_PUNCTUATION_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK_V3_MAIN = (
    rf"{_ASCII_PUNCTUATION_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _CJK_KANA, _DEEPSEEK_V3_MAIN)
_SPARK = (
    r"\p{N}{1,3}",
    _CJK_KANA,
    rf"{_ASCII_PUNCTUATION_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
    _DIGIT,
)

_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = (
    rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|\s*[\r\n]+|\s{{512}}(?!\S)|\s{{256}}(?!\S)|\s{{128}}(?!\S)"
    r"|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    _DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_YOUTU_CJK = "|".join(
    _set(ranges) + "+"
    for ranges in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
        "4E00-9FA5 3040-309F 30A0-30FF",
    )
)
_AFMOE_ASIAN = (
    _set(
        "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF 1780-17FF 1000-109F "
        "AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
    )
    + "+"
)
# Threes counted from the end of a number: 1234567 -> 1 234 567.
_DIGITS_FROM_END = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's way of cutting text.

    Attributes:
        patterns: Oniguruma patterns, applied in this order.
        byte_level: pieces are spelt in GPT-2's byte alphabet; otherwise in UTF-8 with ``▁`` for a space and
            ``<0xXX>`` tokens for characters outside the vocabulary.
        ignore_merges: a piece that is a token as it stands is taken whole, whatever the merges say.
        add_bos: what ``tokenizer.ggml.add_bos_token`` is when the file does not say.
        always_bos: BOS is added although the file says that it isn't: some of the family's files are wrong.
        separators: how many separators stand between the texts of a pair when the file does not say.
        cuts_words: between a letter of a to z and a space with another one behind it, text can be cut: the pieces of
            both parts are those of the whole. True of patterns whose matches have no space behind a letter, and look
            no further ahead than through spaces or digits.
        clean_spaces: the original tokenizer tidies spaces before punctuation when it decodes. Recorded for
            completeness: decoding here is exact and never does.
    """

    patterns: tuple[str, ...]
    byte_level: bool = True
    ignore_merges: bool = False
    add_bos: bool = False
    always_bos: bool = False
    separators: int = 2
    cuts_words: bool = True
    clean_spaces: bool = True


_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer(_DEFAULT)),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    ("jais-2", PreTokenizer((_JAIS2,))),
    (
        "minicpm5",
        PreTokenizer(
            (r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_PUNCTUATION}|{_SPACES}"), ignore_merges=True
        ),
    ),
    ("stablelm2 megrez", PreTokenizer((_QWEN2,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2",
        PreTokenizer((_QWEN2,), clean_spaces=False),
    ),
    ("qwen35", PreTokenizer((_QWEN35,), clean_spaces=False)),
    (
        "ufakzeka",
        PreTokenizer((rf"{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}",), clean_spaces=False),
    ),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2), cuts_words=False, clean_spaces=False)),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM, clean_spaces=False)),
    ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER, clean_spaces=False)),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(_DEEPSEEK_V3, clean_spaces=False)),
    ("spark2_5", PreTokenizer(_SPARK, clean_spaces=False)),
    ("youtu", PreTokenizer((_YOUTU_CJK, _YOUTU), ignore_merges=True, clean_spaces=False)),
    ("falcon", PreTokenizer(_FALCON)),
    (
        "gpt-2 phi-2 mpt olmo jais exaone4 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe "
        "gigachat a.x-4.0 mellum",
        PreTokenizer((_GPT2,)),
    ),
    ("modern-bert", PreTokenizer((_GPT2,), separators=1)),
    ("trillion granite-docling", PreTokenizer((_GPT2,), clean_spaces=False)),
    ("starcoder refact codeshell exaone minerva-7b mellum2", PreTokenizer((_DIGIT, _GPT2))),
    ("command-r smollm", PreTokenizer((_DIGIT, _GPT2), clean_spaces=False)),
    ("bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("poro-chat", PreTokenizer((_BLOOM,), clean_spaces=False)),
    ("viking", PreTokenizer((_BLOOM, _DIGIT), clean_spaces=False)),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True, clean_spaces=False)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,), clean_spaces=False)),
    ("granite-embed-multi-97m", PreTokenizer((_GPT4O,), ignore_merges=True, separators=1, clean_spaces=False)),
    ("tiny_aya cohere2moe", PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O), clean_spaces=False)),
    ("kimi-k2", PreTokenizer((_KIMI_K2,), ignore_merges=True, clean_spaces=False)),
    ("superbpe", PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"), cuts_words=False, clean_spaces=False)),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,), clean_spaces=False)),
    ("seed-coder", PreTokenizer((_SEED_CODER,), clean_spaces=False)),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,), cuts_words=False)),
    ("chameleon", PreTokenizer(_CHAMELEON, add_bos=True, clean_spaces=False)),
    ("afmoe", PreTokenizer((_DIGITS_FROM_END, _AFMOE_ASIAN, _DEEPSEEK_V3_MAIN), clean_spaces=False)),
    ("gemma4 gemma-4", PreTokenizer((), byte_level=False, add_bos=True, always_bos=True, cuts_words=False)),
    (
        "granite-embed-multi-311m",
        PreTokenizer((), byte_level=False, add_bos=True, always_bos=True, separators=1, cuts_words=False),
    ),
    ("sarvam-moe", PreTokenizer((), byte_level=False, cuts_words=False, clean_spaces=False)),
)

_TABLE: dict[str, PreTokenizer] = {name: row for names, row in _FAMILIES for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer | None:
    """The row for a ``tokenizer.ggml.pre`` id, or ``None`` if there is no such id."""
    return _TABLE.get(name)


def known_pre_tokenizers() -> tuple[str, ...]:
    """Every id that :func:`pre_tokenizer` knows, sorted."""
    return tuple(sorted(_TABLE))
