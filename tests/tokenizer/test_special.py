"""Special tokens, what is added to text, and what ends generation."""

import numpy as np
import pytest

from oxillama.errors import TokenizerError
from oxillama.tokenizer.special import Partition
from tests.tokenizer.build import by_score, byte_level, make, recorded, tokenizer


def tokens(vocab: object, ids: list[int]) -> list[str]:
    return [vocab.id_to_token(i) for i in ids]  # type: ignore[attr-defined]


class TestParsing:
    META = byte_level(["a b"], extra=("<|im_start|>", "<|im_end|>", "<|im|>", "<|im|>x"))

    def test_control_tokens_are_plain_text_unless_asked_for(self) -> None:
        vocab = make(self.META)
        plain = vocab.encode("a<|im_end|>")
        assert len(plain) == len("a<|im_end|>")
        assert not any(map(vocab.is_special, plain))
        assert tokens(vocab, vocab.encode("a<|im_end|>", parse_special=True)) == ["a", "<|im_end|>"]

    def test_the_longest_token_wins(self) -> None:
        assert tokens(make(self.META), make(self.META).encode("<|im|>x<|im|>y", parse_special=True)) == [
            "<|im|>x",
            "<|im|>",
            "y",
        ]

    def test_user_defined_tokens_are_always_parsed(self) -> None:
        types = [1] * 257 + [4, 3, 3, 3]
        vocab = make(self.META, token_type=types)
        assert tokens(vocab, vocab.encode("a<|im_start|>b")) == ["a", "<|im_start|>", "b"]

    def test_an_unknown_typed_token_is_parsed_on_request(self) -> None:
        vocab = tokenizer("llama-spm")
        assert vocab.encode("<unk>", add_special=False, parse_special=True) == [0]
        assert 0 not in vocab.encode("<unk>", add_special=False)

    def test_plain_text_never_merges_into_a_control_token(self) -> None:
        # "<s" and ">" are tokens, so "<s>" is one merge away.
        meta = by_score(["<", "s", ">", "<s"], [-1.0, -2.0, -3.0, -0.5], add_space_prefix=False)
        assert tokens(make(meta), make(meta).encode("<s>", add_special=False)) == ["<s", ">"]

    def test_a_control_token_that_reads_like_a_word_is_no_word(self) -> None:
        vocab = make(byte_level(["a b"], extra=("system",), pre="llama-bpe"))
        assert tokens(vocab, vocab.encode("system")) == list("system")
        assert tokens(vocab, vocab.encode("system", parse_special=True)) == ["system"]

    def test_plain_text_never_spells_a_byte_token(self) -> None:
        meta = by_score(["<0x4", "1>"], [-1.0, -2.0], add_space_prefix=False)
        vocab = make(meta)
        assert vocab.token_to_id("<0x41>") not in vocab.encode("<0x41>", add_special=False)


class TestPartition:
    def test_pieces_in_order(self) -> None:
        cut = Partition({"<a>": 1, "<b>": 2}, frozenset(), frozenset())
        assert list(cut("x<a><b> y ")) == ["x", 1, 2, " y "]
        assert list(cut("")) == []
        assert list(cut("<a>")) == [1]

    def test_leftmost_then_longest(self) -> None:
        cut = Partition({"ab": 1, "abc": 2, "bcd": 3}, frozenset(), frozenset())
        assert list(cut("abcd")) == [2, "d"]
        assert list(cut("abbcd")) == [1, 3]

    def test_whitespace_is_swallowed_where_a_token_strips_it(self) -> None:
        cut = Partition({"<m>": 1, "<e>": 2}, frozenset({1}), frozenset({2}))
        assert list(cut("a \n<m> b")) == ["a", 1, " b"]
        assert list(cut("a <e> \n b")) == ["a ", 2, "b"]
        assert list(cut("<e>  <m>  ")) == [2, 1, "  "]

    def test_patterns_are_literal(self) -> None:
        assert list(Partition({".*": 1}, frozenset(), frozenset())("a.*b")) == ["a", 1, "b"]


class TestAdded:
    def test_bos_and_eos_as_the_file_says(self) -> None:
        meta = recorded("llama-spm")["metadata"]
        (text,) = make(meta, add_bos_token=False).encode("Hello")
        assert make(meta).encode("Hello") == [1, text]
        assert make(meta, add_eos_token=True).encode("Hello") == [1, text, 2]
        assert make(meta, add_bos_token=False, add_eos_token=True).encode("Hello") == [text, 2]
        assert make(meta, add_eos_token=True).encode("Hello", add_special=False) == [text]
        assert make(meta).encode("") == [1]
        assert make(meta).encode("", add_special=False) == []

    def test_llama_bpe_adds_bos_without_being_told(self) -> None:
        vocab = tokenizer("llama-bpe")
        assert vocab.encode("Hello")[0] == vocab.bos_id
        assert tokenizer("gpt-2").encode("Hello")[0] != tokenizer("gpt-2").bos_id

    def test_bert_has_cls_and_sep(self) -> None:
        vocab = tokenizer("bert-bge")
        assert tokens(vocab, vocab.encode("hello")) == ["[CLS]", "▁hello", "[SEP]"]
        assert tokens(vocab, vocab.encode("hello", add_special=False)) == ["▁hello"]
        meta = recorded("bert-bge")["metadata"]
        assert tokens(vocab, make(meta, add_sep_token=False).encode("hello")) == ["[CLS]", "▁hello", "[SEP]"]

    def test_t5_adds_eos(self) -> None:
        meta = recorded("sentencepiece_unigram")["metadata"]
        assert make(meta).encode("x")[-1] == make(meta).eos_id
        assert make(meta, add_eos_token=False).encode("x") == make(meta).encode("x", add_special=False)

    def test_t5_has_no_bos_whatever_its_file_says(self) -> None:
        """Converters take a first token that is not set for a BOS that is not set."""
        meta = recorded("sentencepiece_unigram")["metadata"]
        vocab = make(meta, bos_token_id=None, add_bos_token=True)
        assert vocab.bos_id is None
        assert not vocab.add_bos
        assert vocab.encode("x") == make(meta, bos_token_id=None, add_bos_token=False).encode("x")
        with pytest.raises(TokenizerError, match="add_bos_token is true, but"):
            make(recorded("gpt-2")["metadata"], bos_token_id=None, add_bos_token=True)

    def test_the_space_prefix_follows_the_flag_and_special_tokens(self) -> None:
        meta = recorded("llama-spm")["metadata"]
        vocab = make(meta)
        assert tokens(vocab, vocab.encode("Hello", add_special=False)) == ["▁Hello"]
        assert tokens(vocab, vocab.encode("Hello<s>Hello", add_special=False, parse_special=True)) == [
            "▁Hello",
            "<s>",
            "▁Hello",
        ]
        assert make(meta, add_space_prefix=False).decode(vocab.encode("Hello", add_special=False)) == " Hello"

    def test_lower_case_and_accents_follow_the_normaliser_flags(self) -> None:
        meta = recorded("bert-bge")["metadata"]
        vocab = tokenizer("bert-bge")
        assert tokens(vocab, vocab.encode("HELLO", add_special=False)) == ["▁hello"]
        cased = make(meta, **{"normalizer.lowercase": False})
        assert tokens(cased, cased.encode("HELLO hello", add_special=False)) == ["[UNK]", "▁hello"]

    def test_nfc_is_applied_where_the_file_asks_for_it(self) -> None:
        meta = byte_level(["Ã ©"])
        composed = make(meta, **{"normalizer.nfc": True})
        assert tokens(composed, composed.encode("e\u0301")) == ["Ã©"]
        assert len(make(meta).encode("e\u0301")) == 3


class TestEndOfGeneration:
    def test_eos_eot_eom_by_id(self) -> None:
        meta = byte_level(["a b"], extra=("<x>", "<y>", "<z>"))
        vocab = make(meta, eos_token_id=257, eot_token_id=258, eom_token_id=259)
        assert vocab.eog_ids == {257, 258, 259}
        assert vocab.is_eog(258)
        assert not vocab.is_eog(0)

    @pytest.mark.parametrize(
        "text", ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<turn|>"]
    )
    def test_by_text_even_if_not_marked_as_control(self, text: str) -> None:
        for kind in (1, 3, 4):
            vocab = make(byte_level(["a b"], extra=(text,)), token_type=[1] * 257 + [kind])
            assert vocab.eog_ids == {257}
            assert vocab.encode(text, parse_special=True) == [257]

    @pytest.mark.parametrize("text", ["</s>", "<EOT>", "<eos>", "[EOS]"])
    def test_ambiguous_texts_only_as_control_tokens(self, text: str) -> None:
        meta = byte_level(["a b"], extra=(text,))
        assert make(meta).eog_ids == {257}
        assert make(meta, token_type=[1] * 257 + [4]).eog_ids == frozenset()

    def test_end_of_message_is_no_end_in_the_harmony_format(self) -> None:
        vocab = make(byte_level(["a b"], extra=("<|end|>", "<|return|>", "<|call|>")))
        assert vocab.eog_ids == {258, 259}

    def test_recorded_vocabularies(self) -> None:
        assert tokenizer("llama-spm").eog_ids == {2}
        phi = tokenizer("phi-3")
        assert {phi.id_to_token(i) for i in phi.eog_ids} == {"<|end|>", "<|endoftext|>"}


class Text(str):
    """As programs have them that mark what is safe to print."""


def test_ids_and_texts() -> None:
    vocab = tokenizer("llama-spm")
    assert (vocab.bos_id, vocab.eos_id, vocab.unk_id, vocab.cls_id) == (1, 2, 0, None)
    token = vocab.token_to_id("▁the")
    assert token is not None
    assert vocab.id_to_token(token) == "▁the"
    assert vocab.token_bytes(token) == b" the"
    assert vocab.token_to_id("nope") is None
    assert [vocab.token_to_id(text) for text in (np.str_("▁the"), Text("▁the"))] == [token, token]
    assert [vocab.token_to_id(wrong) for wrong in (None, 5, b"a", "\ud800")] == [None] * 4  # type: ignore[arg-type]
    assert vocab.is_special(1)
    assert not vocab.is_special(token)
    assert repr(vocab) == f"<Tokenizer llama/default, {vocab.n_vocab} tokens>"


def test_defaults_of_a_llama_vocabulary_without_ids() -> None:
    vocab = make(by_score(["a"], [-1.0]))
    assert (vocab.bos_id, vocab.eos_id, vocab.unk_id, vocab.add_bos) == (1, 2, 0, True)


def test_an_empty_token_text_is_never_matched() -> None:
    meta = byte_level(["a b"], extra=("", "<x>", ""))
    vocab = make(meta)
    assert tokens(vocab, vocab.encode("a<x>", parse_special=True)) == ["a", "<x>"]
    assert vocab.token_bytes(257) == b""


def test_a_charsmap_rewrites_text_before_segmentation() -> None:
    vocab = tokenizer("sentencepiece_unigram_rules")
    assert vocab.encode("ﬁ", add_special=False) == vocab.encode("fi", add_special=False)
    assert vocab.encode("a\u3000 b") == vocab.encode(" a b ")


class TestFillInTheMiddle:
    TEXTS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
    NAMES = ("pre", "suf", "mid", "pad", "rep", "sep")

    def test_tokens_are_known_by_their_texts(self) -> None:
        vocab = make(byte_level(["a b"], extra=self.TEXTS))
        assert [getattr(vocab, f"fim_{name}_id") for name in self.NAMES] == list(range(257, 263))
        assert [vocab.is_eog(token) for token in range(257, 263)] == [False] * 3 + [True] * 3

    def test_keys_come_first(self) -> None:
        keys = {f"fim_{name}_token_id": i for i, name in enumerate(self.NAMES)}
        vocab = make(byte_level(["a b"], extra=self.TEXTS), **keys)
        assert [getattr(vocab, f"fim_{name}_id") for name in self.NAMES] == list(range(6))

    def test_without_them(self) -> None:
        vocab = tokenizer("llama-spm")
        assert [getattr(vocab, f"fim_{name}_id") for name in self.NAMES] == [None] * 6


def test_types_and_scores() -> None:
    vocab = tokenizer("llama-spm")
    metadata = recorded("llama-spm")["metadata"]
    for token in (0, 1, 3, 300):
        assert vocab.token_type(token) == metadata["tokenizer.ggml.token_type"][token]
        assert vocab.token_score(token) == metadata["tokenizer.ggml.scores"][token]
    assert tokenizer("qwen2").token_score(5) == 0.0
    for call in (vocab.token_type, vocab.token_score):
        with pytest.raises(TokenizerError, match="-1"):
            call(-1)
