"""What is added to texts and between the texts of a pair, for every combination of the file's keys.

``data/added.json`` has, for each vocabulary of `tests.tokenizer.kinds`, the ids of "hello" by combination: "-", "t" and
"f" are for a key that is not there, true and false, in the order of KEYS. They were recorded from llama.cpp's library
(build 11549, as the package xllamacpp 2026.10.11549 ships it: llama_model_load_from_file with vocab_only, and
llama_tokenize). null: llama.cpp stops there, as the token to add is none. Pairs are those of the library `tokenizers`.
"""

import json

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import RobertaProcessing, TemplateProcessing

from oxillama.core.ranking import pair_ids
from oxillama.errors import TokenizerError
from oxillama.tokenizer import Tokenizer
from tests.tokenizer.build import DATA, P, make
from tests.tokenizer.kinds import KEYS, KINDS, VALUES, combinations

ADDED = {
    kind: {name: ids for names, ids in groups.items() for name in names.split()}
    for kind, groups in json.loads((DATA / "added.json").read_text(encoding="utf-8")).items()
}
PRESENT = [*combinations()]


def with_keys(kind: str, name: str, **more: object) -> Tokenizer:
    keys = {key: VALUES[letter] for key, letter in zip(KEYS, name, strict=True)}
    return make(KINDS[kind](), **keys, **more)


def test_every_kind_and_combination_is_recorded() -> None:
    assert ADDED.keys() == KINDS.keys()
    assert all(sorted(found) == sorted(name for name, _ in PRESENT) for found in ADDED.values())


@pytest.mark.parametrize("kind", KINDS)
def test_texts_get_what_llama_cpp_adds(kind: str) -> None:
    for name, _ in PRESENT:
        found = with_keys(kind, name)
        recorded = ADDED[kind][name]
        if recorded is None:  # T5's BOS, which there is none of
            recorded = ADDED[kind]["f" + name[1:]]
        (plain,) = found.encode("hello", add_special=False)
        assert found.encode("hello") == recorded, name
        assert found.encode("") == [token for token in recorded if token != plain], name
        before, after = recorded[: recorded.index(plain)], recorded[recorded.index(plain) + 1 :]
        assert found.add_bos == bool(before), name
        assert found.add_eos + found.add_sep == len(after), name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("bert")])
def test_word_pieces_need_no_eos(kind: str) -> None:
    """SEP closes a text, so that a file may say that EOS is added, and not name one."""
    vocab = make(KINDS[kind](), add_eos_token=True, eos_token_id=None)
    assert vocab.encode("hello") == [101, 104, 102]


def test_without_ids_the_tokens_are_found_by_their_texts() -> None:
    meta = {key: value for key, value in KINDS["bert as converters write it"]().items() if "_token_id" not in key}
    assert make(meta, add_sep_token=False).encode("hello") == [101, 104, 102]


@pytest.mark.parametrize(("kind", "key", "id_key"), [
    ("spm", "add_sep_token", "seperator_token_id"),
    ("bpe gpt-2", "add_eos_token", "eos_token_id"),
    ("gemma4", "add_bos_token", "bos_token_id"),
])  # fmt: skip
def test_a_token_to_add_that_is_none(kind: str, key: str, id_key: str) -> None:
    with pytest.raises(TokenizerError, match=f"{key} is true, but tokenizer.ggml.{id_key} is not set"):
        make(KINDS[kind](), **{key: True, id_key: None})
    assert make(KINDS[kind](), **{key: False, id_key: None}).encode("hello")


def test_byte_strings_stand_alone_whatever_is_none() -> None:
    for key in KEYS:
        vocab = make(KINDS["rwkv"](), **{key: True}, bos_token_id=None, eos_token_id=None, seperator_token_id=None)
        assert vocab.encode("hello") == [257]


def library(first: str, last: str, processor: RobertaProcessing | TemplateProcessing, vocab: Tokenizer) -> Library:
    """Of words "hello" and "world" alone, with the ids of a vocabulary."""
    ids = {"hello": 1_000_000, "world": 1_000_001}
    ids |= {text: token for text in (first, last) if (token := vocab.token_to_id(text)) is not None}
    made = Library(WordLevel(ids, last))
    made.pre_tokenizer = Whitespace()
    made.add_special_tokens([AddedToken(first, special=True), AddedToken(last, special=True)])
    made.post_processor = processor
    return made


def template(first: str, last: str, vocab: Tokenizer) -> TemplateProcessing:
    ids = [(first, vocab.token_to_id(first)), (last, vocab.token_to_id(last))]
    single, pair = f"{first} $A {last}", f"{first} $A {last} $B:1 {last}:1"
    return TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def roberta(first: str, last: str, vocab: Tokenizer) -> RobertaProcessing:
    return RobertaProcessing((last, vocab.token_to_id(last)), (first, vocab.token_to_id(first)))


# Of each vocabulary the keys of its files, old and new ones, and how the library puts a pair together.
PAIRS = [
    ("bert as converters write it", "ttf", template),
    ("bert as older converters wrote it", "---", template),
    ("bert as older converters wrote it", "fff", template),
    ("unigram with a beginning", "ttt", roberta),
    ("unigram with a beginning", "tt-", roberta),
    ("unigram with a beginning", "---", roberta),
    ("bpe roberta-bpe", "ttt", roberta),
    ("bpe roberta-bpe", "---", roberta),
    ("bpe jina-v2-de", "ttt", roberta),
    ("bpe jina-v2-de", "tt-", roberta),
    ("bpe modern-bert", "ttf", template),
    ("bpe modern-bert", "tt-", template),
    ("bpe granite-embed-multi-97m", "tt-", template),
]


@pytest.mark.parametrize(("kind", "keys", "processor"), PAIRS)
def test_pairs_are_put_together_as_the_library_does(kind: str, keys: str, processor) -> None:  # type: ignore[no-untyped-def]
    eos = make(KINDS[kind]()).eos_id
    vocab = with_keys(kind, keys, **({} if kind.startswith("bert") else {"seperator_token_id": eos}))
    assert vocab.bos_id is not None
    assert vocab.sep_id is not None
    first, last = vocab.id_to_token(vocab.bos_id), vocab.id_to_token(vocab.sep_id)
    theirs = library(first, last, processor(first, last, vocab), vocab).encode("hello", "world")
    words = {1_000_000: vocab.encode("hello", add_special=False), 1_000_001: vocab.encode("world", add_special=False)}
    expected = [token for found in theirs.ids for token in words.get(found, [found])]
    assert pair_ids(vocab, None, "hello", "world") == expected
    single = library(first, last, processor(first, last, vocab), vocab).encode("hello").ids
    if keys != "---" or vocab.model == "bert":
        assert vocab.encode("hello") == [token for found in single for token in words.get(found, [found])]


@pytest.mark.parametrize(("keys", "n"), [("ttf", 1), ("ttt", 2), ("--f", 1), ("--t", 2), ("---", 2), ("tt-", 2)])
def test_separators_of_a_pair_go_by_the_files_key(keys: str, n: int) -> None:
    assert with_keys("unigram with a beginning", keys).separators == n
    assert with_keys("bpe roberta-bpe", keys).separators == n
    assert with_keys("bert as converters write it", keys).separators == 1


def test_eos_and_sep_of_their_own_stand_in_this_order() -> None:
    """As llama.cpp's server puts a pair together: EOS, then SEP."""
    vocab = with_keys("bpe roberta-bpe", "ttt")
    hello = vocab.encode("hello", add_special=False)
    between = [vocab.eos_id, vocab.sep_id]
    assert pair_ids(vocab, None, "hello", "hello") == [vocab.bos_id, *hello, *between, *hello, vocab.eos_id]
    assert P + "seperator_token_id" in KINDS["bpe roberta-bpe"]()
