"""Settings of `Llama`: the constructor's keywords, and what they are as an `EngineConfig`."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from oxillama._util.checks import check_bool, check_float, check_int
from oxillama.compat.keywords import REQUIRED, Keyword
from oxillama.config import MAX_CONTEXT, EngineConfig, RopeConfig
from oxillama.errors import ConfigError, ModelNotFoundError
from oxillama.store.resolve import find_model

__all__ = ["CONSTRUCTOR", "POOLINGS", "engine_config", "initial_seed"]

_LOG = logging.getLogger("oxillama")
RANDOM_SEEDS = (-1, 0xFFFFFFFF)
POOLINGS = {-1: None, 0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
_KV_TYPES = {None: "f16", 0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0"}
_SCALINGS = {-1: None, 0: "none", 1: "linear", 2: "yarn", 3: "longrope"}
_GPU = "there is no GPU"


def _is(name: str, default: Any, meaning: str) -> Keyword:
    return Keyword(name, default, "honoured", meaning)


def _accepts(name: str, default: Any, meaning: str) -> Keyword:
    return Keyword(name, default, "accepted", meaning)


def _refuses(name: str, default: Any, meaning: str) -> Keyword:
    return Keyword(name, default, "refused", meaning)


# In the order of the replaced package, whose defaults these are; what it takes beside them comes last.
CONSTRUCTOR: tuple[Keyword, ...] = (
    _is("model_path", REQUIRED, "a GGUF file"),
    _accepts("n_gpu_layers", 0, f"{_GPU}; other values are logged"),
    _accepts("split_mode", 1, _GPU),
    _accepts("main_gpu", 0, _GPU),
    _refuses("tensor_split", None, "there are no devices to split over"),
    _is("vocab_only", False, "the tokenizer alone is loaded"),
    _accepts("use_mmap", True, "weights are rearranged at load; `oxillama.load(repack=False)` keeps the file mapped"),
    _accepts("use_mlock", False, "pages of weights can't be locked; True is logged as a warning"),
    _is("kv_overrides", None, "metadata values that replace those in the file"),
    _is("seed", 0xFFFFFFFF, "-1 and 0xFFFFFFFF: every call draws a seed of its own"),
    _is("n_ctx", 512, "`context_size`; 0: what the model was trained for; more than that is logged as a warning"),
    _is("n_batch", 512, "`prefill_chunk_size`; texts to embed are cut there"),
    _accepts("n_ubatch", 512, "steps are not cut further"),
    _is("n_threads", None, "`num_threads`; None: one per core that the process may use"),
    _accepts("n_threads_batch", None, "prompts and decoding share their threads"),
    _is("rope_scaling_type", -1, "`rope.scaling`"),
    _is("pooling_type", -1, "how `embed` pools; -1: as the file says, and else not at all"),
    _refuses("attention_type", -1, "causal or not is what the file says"),
    _is("rope_freq_base", 0.0, "`rope.freq_base`; 0: the file's"),
    _is("rope_freq_scale", 0.0, "1 / `rope.factor`; 0: the file's"),
    _is("yarn_ext_factor", -1.0, "`rope.ext_factor`, with YaRN"),
    _is("yarn_attn_factor", 1.0, "`rope.attn_factor`, with YaRN"),
    _is("yarn_beta_fast", 32.0, "`rope.beta_fast`, with YaRN"),
    _is("yarn_beta_slow", 1.0, "`rope.beta_slow`, with YaRN"),
    _is("yarn_orig_ctx", 0, "`rope.original_context`, with YaRN; 0: the file's"),
    _is("logits_all", False, "`eval` keeps the logits of all tokens; completions may give `logprobs`"),
    _is("embedding", False, "needed by `embed` and `create_embedding`, as there; the model generates all the same"),
    _accepts("offload_kqv", True, _GPU),
    _accepts("flash_attn", False, "attention is computed in one pass anyway"),
    _accepts("op_offload", None, _GPU),
    _accepts("swa_full", None, "layers with a window keep what they need"),
    _accepts("no_perf", False, "`oxillama.Engine.metrics_snapshot` has the times"),
    _is("last_n_tokens_size", 64, "`repetition_penalty_window`"),
    _refuses("lora_base", None, "adapters are applied to the model's own weights"),
    _is("lora_scale", 1.0, "scale of the adapter"),
    _is("lora_path", None, "an adapter: a GGUF file or a PEFT folder"),
    _accepts("numa", False, "the system places pages where they are first used"),
    _is("chat_format", None, "a name of `llama_chat_format`; None: the file's template, or else llama-2"),
    _is("chat_handler", None, "a function with the keywords of `create_chat_completion`, and `llama`"),
    _is("draft_model", None, "a `LlamaDraftModel`; texts are the same, sooner; `generate` does without"),
    _is("tokenizer", None, "a `BaseLlamaTokenizer` for `tokenize`, `detokenize` and prompts"),
    _is("type_k", None, "F16, F32, Q8_0 or Q4_0, the same as type_v"),
    _is("type_v", None, "F16, F32, Q8_0 or Q4_0, the same as type_k"),
    _is("spm_infill", False, "with `suffix`: the suffix comes first in the prompt"),
    _accepts("verbose", True, "nothing is printed; the logger `oxillama` has what there is to say"),
    _accepts("f16_kv", True, "of old versions: `type_k`"),
    _accepts("mul_mat_q", True, _GPU),
    _accepts("n_parts", -1, "of old versions: files say how many parts they have"),
    _refuses("device", None, "there are no devices to choose from"),
    _refuses("rpc_servers", None, "there are no remote devices"),
)


def _rope(given: dict[str, Any]) -> RopeConfig | None:
    """Settings of rotary embedding by the constructor's keywords; None if they say nothing."""
    kind = given["rope_scaling_type"]
    kind = -1 if kind is None else check_int("rope_scaling_type", kind, -1, 3)
    base = check_float("rope_freq_base", given["rope_freq_base"], 0.0)
    scale = check_float("rope_freq_scale", given["rope_freq_scale"], 0.0)
    yarn = {
        name: given[name]
        for name, default in (("yarn_ext_factor", -1.0), ("yarn_attn_factor", 1.0), ("yarn_beta_fast", 32.0),
                              ("yarn_beta_slow", 1.0), ("yarn_orig_ctx", 0))
        if given[name] != default
    }  # fmt: skip
    scaling = _SCALINGS[kind]
    if scaling is None and scale:
        scaling = "none" if scale == 1 else "linear"
    if yarn and scaling != "yarn":
        name = next(iter(yarn))
        raise ConfigError(f"{name} must be left out unless rope_scaling_type is 2 (YaRN), not {yarn[name]!r}")
    if scaling in ("linear", "yarn") and not scale:
        raise ConfigError(f"rope_freq_scale must be given with rope_scaling_type={kind}: 1 / how far it stretches")
    fields: dict[str, Any] = {"scaling": scaling, "freq_base": base or None}
    if scaling in ("linear", "yarn"):
        fields["factor"] = 1 / scale
    names = {"yarn_orig_ctx": "original_context"}
    fields |= {names.get(name, name.removeprefix("yarn_")): value for name, value in yarn.items()}
    return RopeConfig(**fields) if any(value is not None for value in fields.values()) else None


def _kv_type(given: dict[str, Any]) -> str:
    k, v = given["type_k"], given["type_v"]
    for name, value in (("type_k", k), ("type_v", v)):
        if value not in _KV_TYPES:
            raise ConfigError(
                f"{name} must be GGML_TYPE_F32 (0), GGML_TYPE_F16 (1), GGML_TYPE_Q4_0 (2) or GGML_TYPE_Q8_0 (8), not "
                f"{value}"
            )
    if _KV_TYPES[k] != _KV_TYPES[v]:
        raise ConfigError(f"type_v must be that of type_k ({k}), not {v}: keys and values are stored alike")
    return _KV_TYPES[k]


def engine_config(given: dict[str, Any]) -> EngineConfig:
    """The settings of the engine that the constructor's keywords ask for.

    Raises ModelNotFoundError, which is a ValueError too, if there is no such file; ConfigError, which names the
    keyword, its value and its range.
    """
    path = given["model_path"]
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"model_path must be a path, not {path!r:.60}")
    try:
        path = find_model(path)
    except ModelNotFoundError as error:
        raise NoModelError(f"Model path does not exist: {error}") from error
    if not os.path.exists(path):
        raise NoModelError(f"Model path does not exist: {path}")
    if given["n_gpu_layers"]:
        _LOG.info("n_gpu_layers=%s changes nothing: there is no GPU", given["n_gpu_layers"])
    if given["use_mlock"]:
        _LOG.warning("use_mlock=%s changes nothing: pages of weights can't be locked", given["use_mlock"])
    for name in ("vocab_only", "logits_all", "embedding", "spm_infill"):
        check_bool(name, given[name])
    check_int("last_n_tokens_size", given["last_n_tokens_size"], -1, MAX_CONTEXT)
    check_int("pooling_type", given["pooling_type"], -1, max(POOLINGS))
    n_ctx = check_int("n_ctx", given["n_ctx"], 0, MAX_CONTEXT)
    config = EngineConfig(
        model_path=path,
        context_size=n_ctx or None,
        num_threads=given["n_threads"] or None,
        prefill_chunk_size=check_int("n_batch", given["n_batch"], 1, MAX_CONTEXT),
        kv_type=_kv_type(given),
        rope=_rope(given),
        overrides=given["kv_overrides"],
    )
    return config if n_ctx and given["vocab_only"] else _sized(config, path)


def _sized(config: EngineConfig, path: str) -> EngineConfig:
    """The settings with a context that the model can have, also if that is beyond what it was trained for."""
    from oxillama import gguf

    with gguf.open(path, overrides=config.overrides) as file:
        m, has_positions = file.metadata, "position_embd.weight" in file.tensors
    key, original = f"{m.arch}.context_length", f"{m.arch}.rope.scaling.original_context_length"
    trained = m.get_int(key, minimum=1)
    n_ctx, overrides = config.context_size or trained, config.overrides
    if n_ctx > trained and has_positions:
        _LOG.warning("n_ctx=%d is more than the %d positions that the model has, which are kept", n_ctx, trained)
        n_ctx = trained
    elif n_ctx > max(trained, _reach(config.rope, m.get_int(original, trained, minimum=1))):
        _LOG.warning("n_ctx=%d is more than the %d tokens that the model was trained for", n_ctx, trained)
        beyond = {key: n_ctx} if original in m else {key: n_ctx, original: trained}
        overrides = {**(overrides or {}), **beyond}
    n_batch = min(n_ctx, config.prefill_chunk_size)
    return replace(config, context_size=n_ctx, prefill_chunk_size=n_batch, overrides=overrides)


def _reach(rope: Any, original: int) -> int:
    """Tokens that the keywords of rotary embedding stretch the model to; 0 if they don't."""
    if not isinstance(rope, RopeConfig) or rope.factor is None:
        return 0
    return int((rope.original_context or original) * rope.factor)


def initial_seed(seed: Any) -> int | None:
    """The constructor's seed; None for a random one of each call. Raises ConfigError outside -1 … 2^64 - 1."""
    number = check_int("seed", seed, -1, (1 << 64) - 1)
    return None if number in RANDOM_SEEDS else number


class NoModelError(ModelNotFoundError, ValueError):
    """No such file: a ValueError, as the replaced package raises it."""
