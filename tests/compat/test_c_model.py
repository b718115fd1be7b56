"""Functions of llama.h that tell of a model."""

import ctypes

import pytest

import oxillama.compat as llama_cpp
from oxillama import gguf
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError
from tests.models.bert import BERT, HEADS, changed, with_head


def test_sizes(model):
    made, ctx = model.model, model.ctx
    assert llama_cpp.llama_get_model(ctx) is made
    assert llama_cpp.llama_n_ctx(ctx) == llama_cpp.llama_n_ctx_seq(ctx) == 256
    assert llama_cpp.llama_n_batch(ctx) == llama_cpp.llama_n_ubatch(ctx) == 256
    assert llama_cpp.llama_n_seq_max(ctx) == 1
    assert llama_cpp.llama_n_threads(ctx) == llama_cpp.llama_n_threads_batch(ctx) == model.n_threads
    assert llama_cpp.llama_pooling_type(ctx) == llama_cpp.LLAMA_POOLING_TYPE_NONE
    assert llama_cpp.llama_synchronize(ctx) is None
    names = ("n_ctx_train", "n_embd", "n_embd_inp", "n_embd_out", "n_layer", "n_head", "n_head_kv", "n_swa")
    assert [getattr(llama_cpp, f"llama_model_{name}")(made) for name in names] == [1024, 256, 256, 256, 4, 8, 2, 0]
    assert [llama_cpp.llama_n_embd(made), llama_cpp.llama_n_layer(made)] == [256, 4]
    assert llama_cpp.llama_model_rope_freq_scale_train(made) == 1.0
    with gguf.open(shipped_model()) as file:
        assert llama_cpp.llama_model_size(made) == sum(t.nbytes for t in file.tensors.values())
        assert llama_cpp.llama_model_n_params(made) == sum(t.dequantize().size for t in file.tensors.values())


def test_kinds(model):
    names = ("has_encoder", "has_decoder", "is_recurrent", "is_hybrid", "is_diffusion")
    found = {name: getattr(llama_cpp, f"llama_model_{name}")(model.model) for name in names}
    assert found == {**dict.fromkeys(names, False), "has_decoder": True}
    assert llama_cpp.llama_model_decoder_start_token(model.model) == -1
    assert llama_cpp.llama_model_n_cls_out(model.model) == 1
    assert llama_cpp.llama_model_cls_label(model.model, 0) is None


def test_templates(model):
    template = llama_cpp.llama_model_chat_template(model.model, None)
    assert template == model.vocabulary.chat_template.encode()
    assert llama_cpp.llama_model_chat_template(model.model, b"other") is None


def test_classifiers(tmp_path):
    path = changed(with_head(tmp_path, head=HEADS["output"], pooling_type=4), BERT)
    with llama_cpp.Llama(str(path), n_ctx=0, embedding=True) as model:
        assert llama_cpp.llama_model_has_decoder(model.model) is False
        labels = [
            llama_cpp.llama_model_cls_label(model.model, i) for i in range(llama_cpp.llama_model_n_cls_out(model))
        ]
        assert labels == ([label.encode() for label in model.engine.labels] or [None])


def test_metadata(model):
    buffer = ctypes.create_string_buffer(32)
    made = model.model
    assert llama_cpp.llama_model_meta_val_str(made, b"llama.block_count", buffer, 32) == 1
    assert buffer.value == b"4"
    assert llama_cpp.llama_model_meta_val_str(made, b"other", buffer, 32) == -1
    assert buffer.value == b""
    n = llama_cpp.llama_model_meta_count(made)
    keys, values = [], []
    for i in range(n):
        assert llama_cpp.llama_model_meta_key_by_index(made, i, buffer, 32) > 0
        keys.append(buffer.value)
        length = llama_cpp.llama_model_meta_val_str_by_index(made, i, buffer, 32)
        values.append((length, buffer.value))
    assert keys == [key.encode()[:31] for key in model.metadata]
    assert values == [(len(value.encode()), value.encode()[:31]) for value in model.metadata.values()]
    assert llama_cpp.llama_model_meta_key_by_index(made, n, buffer, 32) == -1
    assert llama_cpp.llama_model_meta_val_str_by_index(made, -1, buffer, 32) == -1
    small = bytearray(6)
    assert llama_cpp.llama_model_desc(made, small, 6) == len(b"llama oxillama default")
    assert small == b"llama\0"
    place = ctypes.c_void_p(ctypes.addressof(buffer))
    assert llama_cpp.llama_model_desc(made, place, 32) == 22
    for null in (None, ctypes.c_void_p(), ctypes.c_char_p()):
        assert llama_cpp.llama_model_desc(made, null, 0) == 22
        with pytest.raises(ConfigError, match="not a null pointer"):
            llama_cpp.llama_model_desc(made, null, 32)
    assert buffer.value == b"llama oxillama default"


def test_others_name_the_remedy(model):
    with pytest.raises(NotImplementedError, match=r"llama_sampler_init_greedy\(\) .* use the methods of Llama"):
        llama_cpp.llama_sampler_init_greedy()
