"""Names of the replaced package: recorded signatures, constants and types, and what each keyword does here."""

import inspect
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama.compat as llama_cpp
from oxillama.compat import llama, llama_chat_format, llama_types
from oxillama.compat.__main__ import tables
from oxillama.compat.chat import CHAT
from oxillama.compat.completion import COMPLETION
from oxillama.compat.settings import CONSTRUCTOR
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError
from tests.models.bert import BERT, changed, with_head

FACTS = json.loads((Path(__file__).parents[1] / "data/compat/names.json").read_text())
# Which the replaced package takes as further keywords: without naming them, and without effect.
BESIDE = ["device", "f16_kv", "mul_mat_q", "n_parts", "rpc_servers"]


def parameters(function):
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


@pytest.mark.parametrize("method", FACTS["signatures"])
def test_signatures(method):
    known = [row for row in FACTS["signatures"][method] if row["kind"] not in ("VAR_KEYWORD", "VAR_POSITIONAL")]
    ours = [p for p in parameters(getattr(llama_cpp.Llama, method)) if p.name not in BESIDE and p.name != "given"]
    assert [p.name for p in ours] == [row["name"] for row in known]
    for parameter, row in zip(ours, known, strict=True):
        assert parameter.kind.name == row["kind"], row
        assert ("default" in row) == (parameter.default is not parameter.empty), row
        assert row.get("default", parameter.empty) == parameter.default, row


def test_constants():
    assert {name: getattr(llama_cpp, name) for name in FACTS["constants"]} == FACTS["constants"]


def test_members_types_and_formats():
    assert [name for name in FACTS["members"] if not hasattr(llama_cpp.Llama, name)] == []
    for module in (llama_types, llama, llama_cpp):
        assert [name for name in FACTS["types"] if not hasattr(module, name)] == []
    registry = llama_chat_format.LlamaChatCompletionHandlerRegistry()
    assert [n for n in FACTS["chat_formats"] if not registry.get_chat_completion_handler_by_name(n)] == []


def test_import_costs_nothing_before_it_is_used():
    code = "import sys, oxillama.compat as c; print('numpy' in sys.modules, 'oxillama.compat.llama' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout.split(), run.stderr) == (["False", "False"], "")


def test_install():
    code = (
        "import oxillama.compat as c; c.install(); import llama_cpp; from llama_cpp import Llama; "
        "from llama_cpp.llama_chat_format import Jinja2ChatFormatter; print(llama_cpp is c, Llama is c.Llama)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout.split(), run.stderr) == (["True", "True"], "")


def test_functions_of_the_c_interface():
    with pytest.raises(NotImplementedError, match=r"llama_sampler_init_greedy\(\)"):
        llama_cpp.llama_sampler_init_greedy()
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        llama_cpp.other  # noqa: B018
    low_level = llama_cpp.llama_cpp
    for name in (*low_level.FUNCTIONS, *low_level.ALIASES, *low_level.TYPES):
        assert getattr(llama_cpp, name) is getattr(low_level, name)
        assert name in dir(low_level)
    assert [name for name in low_level.ALIASES.values() if name not in low_level.FUNCTIONS] == []
    assert [f for f in low_level.FUNCTIONS.values() if not f.__doc__] == []


def test_tables_of_the_manual():
    text = (Path(llama.__file__).parent / "README.md").read_text()
    assert tables() in text, "put what `python -m oxillama.compat` prints into oxillama/compat/README.md"


@pytest.mark.parametrize("keyword", [k for k in CONSTRUCTOR if k.treatment == "refused"], ids=lambda k: k.name)
def test_refused_settings_are_named(keyword):
    with pytest.raises(ConfigError, match=f"^{keyword.name} must be"):
        llama_cpp.Llama(shipped_model(), **{keyword.name: 17})


@pytest.mark.parametrize("keyword", [k for k in COMPLETION + CHAT if k.treatment == "refused"], ids=lambda k: k.name)
def test_refused_options_are_named(keyword, model):
    with pytest.raises(ConfigError, match=f"^{keyword.name} must be"):
        model("x", **{keyword.name: 0.5})
    with pytest.raises(ConfigError, match=f"^{keyword.name} must be"):
        model.create_chat_completion([{"role": "user", "content": "x"}], **{keyword.name: 0.5})


ACCEPTED = {
    "n_gpu_layers": -1, "split_mode": 2, "main_gpu": 1, "use_mmap": False, "n_ubatch": 8, "n_threads_batch": 3,
    "offload_kqv": False, "flash_attn": True, "op_offload": True, "swa_full": True, "no_perf": True, "numa": True,
    "verbose": False, "use_mlock": True, "f16_kv": False, "mul_mat_q": False, "n_parts": 2,
}  # fmt: skip


def test_accepted_settings_change_nothing(model):
    assert set(ACCEPTED) == {k.name for k in CONSTRUCTOR if k.treatment == "accepted"}
    with llama_cpp.Llama(shipped_model(), n_ctx=256, **ACCEPTED) as other:
        one, two = (m("The cat", max_tokens=8, temperature=0)["choices"] for m in (model, other))
    assert one == two


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type_k": 8}, "type_v must be that of type_k"),
        ({"type_k": 2}, "type_v must be that of type_k"),
        ({"type_k": 3, "type_v": 3}, "type_k must be GGML_TYPE_F32"),
        ({"yarn_orig_ctx": 5}, "yarn_orig_ctx must be left out"),
        ({"rope_scaling_type": 1}, "rope_freq_scale must be given"),
        ({"n_ctx": -1}, "n_ctx must be from"),
        ({"n_ctx": 1 << 40}, "^n_ctx "),
        ({"n_threads": -1}, "^n_threads must be"),
        ({"kv_overrides": 3}, "^kv_overrides must map"),
        ({"rope_freq_base": 0.5}, "^rope_freq_base must be"),
        ({"rope_freq_scale": 1e-9}, "^rope_freq_scale must be"),
        ({"seed": -2}, "seed must be from"),
        ({"pooling_type": 9}, "pooling_type must be from"),
        ({"draft_model": 3}, "draft_model must be"),
        ({"logits_all": 1}, "logits_all must be True or False"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        llama_cpp.Llama(shipped_model(), **settings)


def test_what_is_taken_with_a_warning(caplog):
    caplog.set_level(logging.WARNING, "oxillama")
    with llama_cpp.Llama(shipped_model(), n_ctx=1100, use_mlock=True) as model:
        ids = model.tokenize(b"The cat") * 400
        assert (model.n_ctx(), model.engine.context_size, llama_cpp.llama_model_n_ctx_train(model)) == (
            1100,
            1100,
            1024,
        )
        assert model(ids[:1090], max_tokens=4)["usage"]["completion_tokens"] == 4
        short = model("The cat", max_tokens=8, temperature=0)["choices"]
    assert [record.getMessage() for record in caplog.records] == [
        "use_mlock=True changes nothing: pages of weights can't be locked",
        "n_ctx=1100 is more than the 1024 tokens that the model was trained for",
    ]
    with llama_cpp.Llama(shipped_model(), n_ctx=1024) as model:
        assert model("The cat", max_tokens=8, temperature=0)["choices"] == short
    assert len(caplog.records) == 2


@pytest.mark.parametrize("settings", [{"rope_freq_scale": 0.5}, {"rope_scaling_type": 2, "rope_freq_scale": 0.5}])
def test_rope_keywords_stretch_the_context(settings, caplog):
    caplog.set_level(logging.WARNING, "oxillama")
    for n_ctx, n_warnings in ((2048, 0), (2049, 1)):
        with llama_cpp.Llama(shipped_model(), n_ctx=n_ctx, **settings) as model:
            assert (model.n_ctx(), model.engine.model_config.rope.original_context) == (n_ctx, 1024)
        assert len(caplog.records) == n_warnings


def test_a_model_with_a_table_of_positions_keeps_it(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "oxillama")
    path = changed(with_head(tmp_path), BERT)
    with llama_cpp.Llama(str(path), n_ctx=0, embedding=True) as model:
        trained, row = model.n_ctx(), model.embed("abc")
    assert caplog.records == []
    with llama_cpp.Llama(str(path), n_ctx=5 * trained, embedding=True) as model:
        assert (model.n_ctx(), model.n_batch, model.embed("abc")) == (trained, trained, row)
    assert caplog.records[-1].getMessage() == (
        f"n_ctx={5 * trained} is more than the {trained} positions that the model has, which are kept"
    )


def test_unknown_keywords_and_missing_files():
    with pytest.raises(TypeError, match="unknown"):
        llama_cpp.Llama(shipped_model(), unknown=1)
    with pytest.raises(ValueError, match=r"Model path does not exist: nowhere\.gguf"):
        llama_cpp.Llama("nowhere.gguf")
    with pytest.raises(ConfigError, match="LlamaDiskCache is refused"):
        llama_cpp.LlamaDiskCache()


def test_pickles_hold_the_settings(model):
    with pickle.loads(pickle.dumps(model)) as other:
        assert (other.n_ctx(), other.logits_all) == (model.n_ctx(), True)
        assert other.eval_tokens == model.eval_tokens.__class__(maxlen=model.n_ctx())
