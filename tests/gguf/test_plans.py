"""Which format each tensor gets, against what llama.cpp chose for the same models."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from oxillama.errors import ConfigError, QuantError
from oxillama.gguf.entries import make_entry
from oxillama.gguf.formats import format_by_name
from oxillama.gguf.metadata import Metadata
from oxillama.gguf.mixes import FILE_TYPES, file_type, is_quantised
from oxillama.gguf.plans import plan_tensors
from oxillama.gguf.tensors import TensorInfo
from oxillama.kernels import _table

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "plans.json").read_text())
CASES = [(model, type) for model, found in RECORDED.items() for type in found["types"]]


def tensors(shapes):
    return {
        name: TensorInfo.of(name, tuple(shape), format_by_name(type), 0, None, np.empty(0, np.uint8))
        for name, (type, *shape) in shapes.items()
    }


def plan(shapes, type, metadata=None, **options):
    keys = metadata or {"general.architecture": "llama", "llama.block_count": 2, "llama.attention.head_count": 4}
    entries = Metadata({k: make_entry(k, v, None) for k, v in keys.items()})
    return plan_tensors(tensors(shapes), entries, file_type(type), **{"tensor_types": {}, **options})


SMALL = {
    "token_embd.weight": ["F16", 512, 256],
    "output.weight": ["F16", 512, 256],
    "output_norm.weight": ["F32", 256],
    "blk.0.attn_v.weight": ["F16", 64, 256],
    "blk.0.ffn_down.weight": ["F16", 256, 96],
    "blk.0.ffn_gate_inp.weight": ["F32", 8, 256],
}


@pytest.mark.parametrize(("model", "type"), CASES)
def test_formats_are_those_that_llama_cpp_chose(model, type):
    found = RECORDED[model]
    plans = plan(found["tensors"], type, found["metadata"])
    assert [p.name for p in plans] == list(found["tensors"])
    assert [p.after for p in plans] == found["types"][type].split()


def test_pure_gives_all_matrices_one_format():
    formats = {p.name: p.after for p in plan(SMALL, "Q2_K", pure=True)}
    assert formats == {
        "token_embd.weight": "Q2_K", "output.weight": "Q2_K", "output_norm.weight": "F32",
        "blk.0.attn_v.weight": "Q2_K", "blk.0.ffn_down.weight": "Q4_0", "blk.0.ffn_gate_inp.weight": "F32",
    }  # fmt: skip


def test_the_output_can_be_kept_also_where_it_is_the_embedding():
    assert {p.name: p.after for p in plan(SMALL, "Q4_0", keep_output=True)}["output.weight"] == "F16"
    tied = {name: shape for name, shape in SMALL.items() if name != "output.weight"}
    assert {p.name: p.after for p in plan(tied, "Q4_0")}["token_embd.weight"] == "Q6_K"
    assert {p.name: p.after for p in plan(tied, "Q4_0", keep_output=True)}["token_embd.weight"] == "F16"


def test_every_fallback_is_told():
    told = {p.name: (p.after, p.fallback) for p in plan(SMALL, "Q4_K_S") if p.fallback}
    assert told == {"blk.0.ffn_down.weight": ("Q5_0", "rows of 96 values; Q4_K needs a multiple of 256")}
    odd = {"output.weight": ["F32", 10, 64], "blk.0.attn_k.weight": ["F32", 10, 33]}
    told = {p.name: (p.after, p.fallback) for p in plan(odd, "Q8_0")}
    assert told["output.weight"] == ("Q8_0", None)
    assert told["blk.0.attn_k.weight"] == ("F16", "rows of 33 values; Q8_0 needs a multiple of 32")
    assert plan(odd, "Q4_0")[0].fallback == "rows of 64 values; Q6_K needs a multiple of 256"


def test_the_first_pattern_that_is_found_counts():
    chosen = {"attn_v": "Q8_0", r"\.weight$": "q5_1"}
    formats = {p.name: p.after for p in plan(SMALL, "Q4_0", tensor_types=chosen, keep_output=True)}
    assert formats["blk.0.attn_v.weight"] == "Q8_0"
    assert formats["output.weight"] == formats["blk.0.ffn_down.weight"] == "Q5_1"
    assert formats["output_norm.weight"] == "F32"


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        ({"attn_x": "Q8_0"}, ConfigError, "'attn_x' is found in no name of a matrix"),
        ({"output_norm": "Q8_0"}, ConfigError, "'output_norm' is found in no name of a matrix"),
        ({"(": "Q8_0"}, ConfigError, "'(' is no regular expression"),
        ({"attn": "Q9"}, QuantError, "tensor_types: 'attn': unknown tensor format 'Q9'"),
        (
            {"ffn": "Q8_0", "ffn_down": "Q5_1"},
            ConfigError,
            "'ffn_down' is found in no name of a matrix that can be "
            "quantised, or only in names that an earlier pattern is found in",
        ),
        ({"attn": "IQ3_S"}, QuantError, "quantising to IQ3_S is not supported; there are F32, F16"),
        ({"ffn_down": "Q4_K"}, QuantError, "rows of 96 values are no multiple of 256; choose Q5_0"),
    ],
)
def test_patterns_that_cannot_be_followed_are_refused(chosen, error, message):
    with pytest.raises(error, match=re.escape(message)):
        plan(SMALL, "Q4_0", tensor_types=chosen)


def test_file_types_name_formats_that_are_written():
    assert {t.format for t in FILE_TYPES.values()} <= set(_table.writable_formats())
    assert len({t.id for t in FILE_TYPES.values()}) == len(FILE_TYPES)
    assert file_type("q4_k") is FILE_TYPES["Q4_K_M"]
    for bad in ("Q4_K_XL", "", None):
        with pytest.raises(QuantError, match=r"unknown file type .*; there are F32, F16"):
            file_type(bad)


def test_one_row_is_no_matrix():
    assert not is_quantised("a.weight", (1, 256))
    assert not is_quantised("a.weight", (256,))
    assert not is_quantised("a.bias", (2, 256))
    assert is_quantised("a.weight", (2, 1, 256))


def test_tensors_that_few_models_have_get_what_llama_cpp_gives_them():
    """As its quantiser did with phi3, ``attn_qkv`` renamed, and with gemma and one more tensor."""
    shapes = {"output.weight": ["F32", 384, 256]} | {f"blk.{i}.attn_kv_b.weight": ["F32", 128, 256] for i in range(3)}
    assert [p.after for p in plan(shapes, "Q4_K_M")] == ["Q6_K", "Q4_K", "Q4_K", "Q6_K"]
    tied = {name: ["F32", 384, 256] for name in ("token_embd.weight", "per_layer_token_embd.weight")}
    assert [p.after for p in plan(tied, "Q4_K_M")] == ["Q6_K", "Q6_K"]
    assert [p.after for p in plan(tied | {"output.weight": ["F32", 384, 256]}, "Q4_K_M")] == ["Q4_K", "Q4_K", "Q6_K"]
