"""Attention whose keys an index chooses: what layers keep, and metadata that contradict themselves."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.layer_state import KvShape
from tests.models import naive
from tests.models.references import TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, tiny

DEEP = Shape(n_layers=4)
INDEX = "attention.indexer."


def test_what_layers_keep(tmp_path):
    """The latent vector, and a key of the index in layers that choose."""
    s, model = DEEP, load(tiny("glm-dsa", tmp_path, DEEP))
    latent, key = KvShape(1, s.rank + s.n_rot, s.rank), KvShape(1, s.n_rot + 7, 0)
    assert model.spec.states == ((latent, key), (latent,), (latent, key), (latent, key))
    assert model.spec.shares_choice
    assert not load(tiny("deepseek32", tmp_path, DEEP)).spec.shares_choice


def test_every_layer_chooses_where_metadata_are_silent(tmp_path):
    path = tiny("deepseek32", tmp_path, DEEP)
    said = rewritten(path, tmp_path, {f"deepseek32.{INDEX}types": [1, 1, 1, 1]})
    assert (logits(said, TOKENS) == logits(path, TOKENS)).all()


@pytest.mark.parametrize("types", [[True, False, True, True], [True, False, True, True, False], None])
def test_layers_that_predict_further_ahead_are_left_out(tmp_path, types):
    """With an index of their own, and with or without a word on what they choose."""
    path = tiny("glm-dsa", tmp_path, DEEP)
    rng = np.random.default_rng(0)
    names = ("nextn.eh_proj", "indexer.attn_k", "indexer.proj")
    more = {f"blk.4.{name}.weight": rng.standard_normal((8, 8)).astype(np.float32) for name in names}
    keys = {"block_count": 5, "nextn_predict_layers": 1, INDEX + "types": types}
    longer = rewritten(path, tmp_path, {f"glm-dsa.{key}": value for key, value in keys.items()}, more)
    assert (logits(longer, TOKENS) == logits(path, TOKENS)).all()


@pytest.mark.parametrize("name", ["deepseek32", "glm-dsa"])
@pytest.mark.parametrize("top_k", [1, 2, 39, 40, 1 << 20])
def test_any_number_of_keys(tmp_path, name, top_k):
    path = rewritten(tiny(name, tmp_path, DEEP, seed=2), tmp_path, {f"{name}.{INDEX}top_k": top_k})
    expected = naive.logits(path, TOKENS)
    assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        (INDEX + "types", [False, True, True, True], LoadError, "has the first layer use the choice of an earlier one"),
        (INDEX + "types", [True, True, True], LoadError, "has 3 values for 4 layers"),
        (INDEX + "types", True, LoadError, "types"),
        (INDEX + "types", [1, 2, 1, 1], LoadError, r"types has a value 2; only 0 and 1 say which layers choose keys"),
        (INDEX + "types", [True, True, True, True], MissingTensorError, r"blk\.1\.indexer\.attn_q_b\.weight"),
        (INDEX + "types", [True, False, False, True], UnsupportedModelError, r"no use for blk\.2\.indexer"),
        (INDEX + "key_length", 7, LoadError, r"key_length is 7, but glm-dsa\.rope\.dimension_count is 8"),
        (INDEX + "key_length", 16, LoadError, r"indexer\.attn_q_b\.weight has shape"),
        (INDEX + "head_count", 3, LoadError, r"indexer\.attn_q_b\.weight has shape"),
        (INDEX + "head_count", 1 << 11, LoadError, r"indexer\.head_count' is 2048"),
        (INDEX + "top_k", 0, LoadError, r"indexer\.top_k' is 0"),
        (INDEX + "top_k", None, LoadError, r"indexer\.top_k"),
        ("attention.q_lora_rank", 0, LoadError, "q_lora_rank is 0, but the queries of the index are made of that"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, key, value, error, message):
    with pytest.raises(error, match=message):
        load(rewritten(tiny("glm-dsa", tmp_path, DEEP), tmp_path, {f"glm-dsa.{key}": value}))


class TestBlocks:
    def test_what_layers_keep(self, tmp_path):
        """Keys and values, and a key of the index in layers that have one."""
        s, model = Shape(n_layers=3, n_kv_heads=1), load(tiny("minimax-m3", tmp_path, Shape(n_layers=3, n_kv_heads=1)))
        kept, key = KvShape(1, s.head_dim, s.head_dim), KvShape(1, s.n_rot + 7, 0)
        assert model.spec.states == ((kept,), (kept, key), (kept, key))

    @pytest.mark.parametrize("keys", [
        {"block_size": 1, "top_k": 1}, {"block_size": 7, "top_k": 2, "local_blocks": 2}, {"block_size": 48, "top_k": 1},
        {"block_size": 16, "top_k": 1}, {"block_size": 3, "top_k": 4, "local_blocks": 0}, {"local_blocks": None},
    ])  # fmt: skip
    def test_any_blocks(self, tmp_path, keys):
        path = tiny("minimax-m3", tmp_path, Shape(n_heads=6, n_kv_heads=2), seed=2)
        path = rewritten(path, tmp_path, {f"minimax-m3.{INDEX}{key}": value for key, value in keys.items()})
        expected = naive.logits(path, TOKENS)
        assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()
        assert (logits(path, TOKENS, chunk=7, kv_block_size=32) == logits(path, TOKENS)).all()

    def test_heads_that_share_a_choice(self, tmp_path):
        """Queries of the index are half as many as heads of keys; those of neighbours see the same."""
        path = tiny("minimax-m3", tmp_path, Shape(n_heads=8, n_kv_heads=4), seed=3)
        keys, halves = {f"minimax-m3.{INDEX}head_count": 2}, {}
        with gguf.open(path) as file:
            for name, tensor in file.tensors.items():
                if name.endswith("indexer.q_proj.weight"):
                    halves[name] = np.array(tensor.dequantize())[: tensor.shape[0] // 2]
        path = rewritten(path, tmp_path, keys, halves)
        expected = naive.logits(path, TOKENS)
        assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("head_count", 3, r"head_count is 3, which does not divide the 1 heads of keys"),
            ("head_count", 2, r"head_count is 2, which does not divide the 1 heads of keys"),
            ("key_length", 7, r"key_length is 7, but minimax-m3\.rope\.dimension_count is 8"),
            ("key_length", 16, r"indexer\.q_proj\.weight has shape"),
            ("top_k", 0, r"indexer\.top_k' is 0"),
            ("block_size", 0, r"indexer\.block_size' is 0"),
            ("block_size", None, r"indexer\.block_size"),
            ("local_blocks", 4, r"indexer\.local_blocks' is 4"),
        ],
    )
    def test_what_contradicts_itself_is_refused(self, tmp_path, key, value, message):
        with pytest.raises(LoadError, match=message):
            load(rewritten(tiny("minimax-m3", tmp_path), tmp_path, {f"minimax-m3.{INDEX}{key}": value}))
