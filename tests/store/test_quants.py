"""Quantisations by names of files, and which one is taken."""

import pytest

from oxillama.errors import ConfigError, ModelNotFoundError
from oxillama.store.names import HubName
from oxillama.store.quants import kind_of, nearest_quant, quant_of_file, quant_of_tag
from oxillama.store.repository import choose, is_file_name


@pytest.mark.parametrize(
    ("filename", "quant"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("m.Q8_0.gguf", "Q8_0"),
        ("m-IQ4_XS-00001-of-00003.gguf", "IQ4_XS"),
        ("Q6_K/m-00001-of-00002.gguf", "Q6_K"),
        ("BF16/m.gguf", "BF16"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-fp16.gguf", "F16"),
        ("m-MXFP4_MOE.gguf", "MXFP4"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("Q8_0/m-Q4_0.gguf", "Q4_0"),
        ("model.gguf", None),
        ("qq8_0x.gguf", None),
        ("Qwen3-8B.gguf", None),
        ("model-Q4_K_M.GGUF", "Q4_K_M"),
    ],
)
def test_quantisation_of_a_file(filename, quant):
    assert quant_of_file(filename) == quant


def test_tags():
    assert quant_of_tag("q4_k") == "Q4_K_M"
    assert quant_of_tag("Q9_9_9_9_9") is None
    assert quant_of_tag("") is None


@pytest.mark.parametrize(
    ("there", "quant"),
    [
        (["F16", "Q4_K_M", "Q8_0"], "Q4_K_M"),
        (["F16", "Q8_0"], "Q8_0"),
        (["Q2_K", "Q5_K_M", "Q8_0"], "Q5_K_M"),
        (["UD-Q4_K_M", "Q4_K_S"], "UD-Q4_K_M"),
        (["BF16"], "BF16"),
        (["Q4_0", "Q5_0"], "Q4_0"),
        (["IQ4_NL", "Q4_K_S", "Q5_K_S"], "Q4_K_S"),
    ],
)
def test_nearest(there, quant):
    assert nearest_quant(there) == nearest_quant(there[::-1]) == quant


@pytest.mark.parametrize(
    ("filename", "kind"),
    [
        ("mmproj-model-f16.gguf", "mmproj"),
        ("Model-mmproj-BF16.gguf", "mmproj"),
        ("model-draft-Q8_0.gguf", "draft"),
        ("mtp-model.gguf", "draft"),
        ("imatrix_unsloth.gguf", "imatrix"),
        ("ggml-vocab-llama.gguf", "vocabulary"),
        ("lora-adapter.gguf", "adapter"),
        ("Overdrafted-7B.gguf", None),
        ("Explorata-Q4_0.gguf", None),
    ],
)
def test_files_beside_models(filename, kind):
    assert kind_of(filename) == kind


def files(*names):
    return choose(HubName("o/r"), names).files


def test_usual_quantisation():
    choice = choose(HubName("o/r"), ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-f16.gguf", "m-draft-Q4_K_M.gguf"])
    assert (choice.files, choice.quant, choice.said) == (["m-Q4_K_M.gguf"], "Q4_K_M", "")
    assert choice.beside == {"mmproj": ["mmproj-f16.gguf"], "draft": ["m-draft-Q4_K_M.gguf"]}


def test_what_is_nearest_is_said():
    choice = choose(HubName("o/r"), ["m-Q8_0.gguf", "m-F16.gguf"])
    assert choice.files == ["m-Q8_0.gguf"]
    assert choice.said == "there is no Q4_K_M: Q8_0 is the nearest of F16, Q8_0"


def test_split_files_come_whole():
    parts = [f"Q4_K_M/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert files(*reversed(parts), "m-Q8_0.gguf") == parts
    assert choose(HubName("o/r", parts[1]), parts).files == parts
    with pytest.raises(ModelNotFoundError, match=r"not all parts of 'Q4_K_M/m-00001-of-00003.gguf': .*00002"):
        files(parts[0], parts[2])


def test_a_whole_file_beside_a_split_one():
    assert files("m-Q4_K_M.gguf", "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf") == ["m-Q4_K_M.gguf"]
    assert files("m-Q4_K_M.gguf", "old/m-Q4_K_M.gguf") == ["m-Q4_K_M.gguf"]


def test_without_quantisations():
    assert files("model.gguf") == ["model.gguf"]
    assert files("mmproj.gguf") == ["mmproj.gguf"]
    with pytest.raises(ConfigError, match=r"the name of 2 files: give one of hf:o/r/a.gguf, hf:o/r/b.gguf"):
        files("a.gguf", "b.gguf")


def test_what_is_not_there_names_what_is():
    there = ["m-Q2_K.gguf", "m-Q6_K.gguf", "m-UD-Q8_0.gguf"]
    with pytest.raises(
        ModelNotFoundError, match=r"no Q5_K_M: there are Q2_K, Q6_K, UD-Q8_0; the nearest is hf:o/r:Q6_K"
    ):
        choose(HubName("o/r", None, "Q5_K_M"), there)
    assert choose(HubName("o/r", None, "Q8_0"), there).files == ["m-UD-Q8_0.gguf"]
    with pytest.raises(ModelNotFoundError, match=r"has no file 'm-Q2K.gguf'; did you mean 'm-Q2_K.gguf'"):
        choose(HubName("o/r", "m-Q2K.gguf"), there)
    assert choose(HubName("o/r", "M-q2_k.GGUF"), there).files == ["m-Q2_K.gguf"]
    with pytest.raises(ModelNotFoundError, match=r"no GGUF file"):
        files()


def test_many_files_are_named_in_few_words():
    with pytest.raises(ConfigError) as caught:
        files(*(f"m{i}.gguf" for i in range(5000)))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "name",
    ["../a.gguf", "a/../b.gguf", "/etc/a.gguf", "a\0.gguf", "a\n.gguf", "a\\b.gguf", "a.bin", "", None, 5, "a//b.gguf",
     "é" * 128 + ".gguf", "d/" * 600 + "a.gguf", "C:a.gguf", "./a.gguf"],
)  # fmt: skip
def test_hostile_names_of_files_are_none(name):
    assert not is_file_name(name)


@pytest.mark.parametrize("name", ["a.gguf", "BF16/model (v2) é.GGUF", "m-00002-of-00003.gguf"])
def test_names_of_files(name):
    assert is_file_name(name)
