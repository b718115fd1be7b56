"""Layers that are gone through several times: what each pass keeps, and what files may say of passes."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import LoadError, UnsupportedModelError
from tests.models import naive
from tests.models.references import TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, tiny


def test_each_pass_keeps_keys_and_values_of_its_own(tmp_path):
    model = load(tiny("nanbeige", tmp_path, Shape(n_layers=2)))
    assert [len(kept) for kept in model.spec.states] == [3, 3]
    assert len({shape for kept in model.spec.states for shape in kept}) == 1


@pytest.mark.parametrize("n", [None, 1, 2, 5])
@pytest.mark.parametrize("skips", [None, False, True])
def test_any_number_of_passes(tmp_path, n, skips):
    keys = {"nanbeige.num_loops": n, "nanbeige.skip_loop_final_norm": skips}
    path = rewritten(tiny("nanbeige", tmp_path), tmp_path, keys)
    expected = naive.logits(path, TOKENS)
    assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


def test_one_pass_is_a_llama(tmp_path):
    path = tiny("nanbeige", tmp_path)
    once = logits(rewritten(path, tmp_path, {"nanbeige.num_loops": 1}), TOKENS)
    keys = {key.replace("nanbeige.", "llama."): value for key, value in keys_of(path).items()}
    keys |= {"general.architecture": "llama", "llama.num_loops": None, "llama.skip_loop_final_norm": None}
    as_llama = rewritten(path, tmp_path, keys)
    assert (logits(as_llama, TOKENS) == once).all()


def keys_of(path):
    with gguf.open(path) as file:
        return {key: file.metadata[key] for key in file.metadata if key.startswith("nanbeige.")}


@pytest.mark.parametrize("n", [0, 1 << 11, 1 << 40])
def test_numbers_of_passes_that_can_not_be(tmp_path, n):
    with pytest.raises(LoadError, match="num_loops"):
        load(rewritten(tiny("nanbeige", tmp_path), tmp_path, {"nanbeige.num_loops": n}))


def test_others_have_no_use_for_passes(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"llama\.num_loops is 2"):
        load(rewritten(tiny("llama", tmp_path), tmp_path, {"llama.num_loops": 2}))


class TestHierarchical:
    """Stacks of layers in turns, whose passes are what files count as blocks."""

    def test_each_pass_keeps_keys_and_values_of_its_own(self, tmp_path):
        model = load(tiny("hrm_text", tmp_path, Shape(n_layers=4)))
        assert [len(kept) for kept in model.spec.states] == [4, 4, 2, 2]
        assert model.spec.n_layers == len(model.layers) == 4

    @pytest.mark.parametrize(("slow", "fast"), [(1, 1), (1, 3), (3, 1), (2, 4)])
    def test_any_number_of_passes(self, tmp_path, slow, fast):
        path, n = tiny("hrm_text", tmp_path), 2
        keys = {"block_count": n * slow * (fast + 1), "hrm.h_cycles": slow, "hrm.l_cycles": fast}
        path = rewritten(path, tmp_path, {f"hrm_text.{key}": value for key, value in keys.items()})
        expected = naive.logits(path, TOKENS)
        assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()
        for chunk in (1, 7):
            assert (logits(path, TOKENS, chunk=chunk) == logits(path, TOKENS)).all()

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("block_count", 11, r"block_count is 11, but .*layers_per_stack 2, h_cycles 2 and l_cycles 2 make 12"),
            ("hrm.h_cycles", 3, "make 18"),
            ("hrm.l_cycles", 0, r"hrm\.l_cycles' is 0"),
            ("hrm.h_cycles", None, r"hrm\.h_cycles"),
            ("hrm.layers_per_stack", 1 << 13, r"hrm\.layers_per_stack' is 8192"),
            ("embedding_scale", -1.0, r"embedding_scale' is -1"),
        ],
    )
    def test_what_contradicts_itself_is_refused(self, tmp_path, key, value, message):
        with pytest.raises(LoadError, match=message):
            load(rewritten(tiny("hrm_text", tmp_path), tmp_path, {f"hrm_text.{key}": value}))

    def test_blocks_that_no_pass_uses_are_refused(self, tmp_path):
        extra = {"blk.4.attn_q.weight": np.zeros((48, 64), np.float32)}
        with pytest.raises(UnsupportedModelError, match=r"no use for blk\.4\.attn_q"):
            load(rewritten(tiny("hrm_text", tmp_path), tmp_path, tensors=extra))
