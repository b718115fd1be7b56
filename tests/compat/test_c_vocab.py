"""Functions of llama.h on vocabularies, as other packages call them: by pointers, numbers and addresses."""

import ctypes
import gc

import pytest

import oxillama.compat as llama_cpp
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, TokenizerError

TEXT = b"Once upon a time"


@pytest.fixture(scope="module")
def vocab(model):
    return llama_cpp.llama_model_get_vocab(model.model)


def tokenize(vocab, text, room=64, special=True, function=None):
    ids = (llama_cpp.llama_token * room)()
    function = function or llama_cpp.llama_tokenize
    n = function(vocab, text, len(text), ids, room, True, special)
    return n, list(ids[: max(n, 0)])


def test_special_tokens(model, vocab):
    names = ("bos", "eos", "eot", "sep", "nl", "pad", "mask", "cls", "fim_pre", "fim_suf", "fim_mid", "fim_rep")
    found = {name: getattr(llama_cpp, f"llama_vocab_{name}")(vocab) for name in names}
    assert found == {**dict.fromkeys(names, -1), "bos": 0, "eos": 1, "nl": 204, "eot": 5, "pad": 1}
    assert [llama_cpp.llama_token_bos(vocab), llama_cpp.llama_token_eos(vocab)] == [0, 1]
    assert [getattr(llama_cpp, f"llama_vocab_get_add_{name}")(vocab) for name in ("bos", "eos", "sep")] == [
        True, False, False,
    ]  # fmt: skip


def test_tokens(model, vocab):
    assert llama_cpp.llama_vocab_n_tokens(vocab) == llama_cpp.llama_n_vocab(vocab) == 1536
    assert llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_BPE
    assert llama_cpp.llama_vocab_get_text(vocab, 456) == "Ġupon".encode()
    assert llama_cpp.llama_vocab_get_score(vocab, 456) == 0.0
    kinds = [llama_cpp.llama_vocab_get_attr(vocab, token) for token in (0, 456)]
    assert kinds == [llama_cpp.LLAMA_TOKEN_ATTR_CONTROL, llama_cpp.LLAMA_TOKEN_ATTR_NORMAL]
    assert [llama_cpp.llama_vocab_is_eog(vocab, token) for token in (0, 1)] == [False, True]
    assert [llama_cpp.llama_token_is_control(vocab, ctypes.c_int32(token)) for token in (0, 456)] == [True, False]
    with pytest.raises(TokenizerError, match="1536"):
        llama_cpp.llama_vocab_get_text(vocab, 1536)


def test_text_to_tokens_and_back(model, vocab):
    assert tokenize(vocab, TEXT) == (5, [0, 449, 456, 262, 408])
    assert tokenize(vocab, TEXT, room=4) == (-5, [])
    with pytest.raises(ConfigError, match="not a null pointer"):
        llama_cpp.llama_tokenize(vocab, None, 5, (ctypes.c_int32 * 8)(), 8, True, False)
    assert tokenize(vocab, b"a\xff")[1] == model.vocabulary.encode("a�", True, True)
    ids = (ctypes.c_int32 * 6)(0, 449, 456, 262, 408, 1)
    buffer = ctypes.create_string_buffer(64)
    assert llama_cpp.llama_detokenize(vocab, ids, 6, buffer, 64, True, False) == len(TEXT)
    assert buffer.raw[: len(TEXT)] == TEXT
    assert llama_cpp.llama_detokenize(vocab, ids, 6, buffer, 3, True, False) == -len(TEXT)
    n = llama_cpp.llama_detokenize(vocab, ids, 5, buffer, 64, False, True)
    assert buffer.raw[:n] == b"<|begin|>" + TEXT


def test_pieces(vocab):
    buffer = bytearray(8)
    assert llama_cpp.llama_token_to_piece(vocab, 449, buffer, 8, 0, False) == 4
    assert llama_cpp.llama_token_to_piece(vocab, 449, buffer, 2, 0, False) == -4
    assert bytes(buffer[:4]) == b"Once"
    assert llama_cpp.llama_token_to_piece(vocab, 456, buffer, 8, 1, False) == 4
    assert bytes(buffer[:4]) == b"upon"
    assert llama_cpp.llama_token_to_piece(vocab, 0, buffer, 8, 0, False) == 0


def test_a_library_calls_by_addresses(vocab):
    """As packages in other languages do: they get the vocabulary as a number, and the function's address."""
    address = ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value
    number = ctypes.c_int32
    kind = ctypes.CFUNCTYPE(
        number, ctypes.c_void_p, ctypes.c_char_p, number, ctypes.POINTER(number), number, ctypes.c_bool, ctypes.c_bool
    )
    assert tokenize(int(vocab), TEXT, function=kind(address)) == (5, [0, 449, 456, 262, 408])
    assert llama_cpp.llama_vocab_n_tokens(int(vocab)) == 1536
    assert llama_cpp.llama_cpp._lib is llama_cpp.llama_cpp._lib


def test_a_vocabulary_that_is_gone():
    with llama_cpp.Llama(shipped_model(), vocab_only=True) as other:
        pointer = llama_cpp.llama_model_get_vocab(other.model)
        assert llama_cpp.llama_model_get_vocab(other.model) == pointer
        number = int(pointer)
    del other, pointer
    gc.collect()
    for wrong in (number, 3, None, "x"):
        with pytest.raises(ConfigError, match="vocab must be of a Llama"):
            llama_cpp.llama_vocab_bos(wrong)
