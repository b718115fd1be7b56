"""Adapters in the folders that Hugging Face PEFT writes: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxillama.errors import LoraError, ModelNotFoundError, UnsupportedModelError
from oxillama.lora.factors import Change, check_scale, check_shapes, check_values
from oxillama.lora.safetensors import SafeTensors, open_file, read_safetensors, refuse

__all__ = ["ADAPTER_FILES", "CONFIG", "WEIGHTS", "PeftConfig", "read_peft"]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_FILES = (CONFIG, WEIGHTS)
OLD_WEIGHTS = "adapter_model.bin"  # a pickle
MAX_CONFIG = 16 << 20

# Settings of the adapter's training or storage, which don't change its computation.
# fmt: off
SILENT = frozenset({
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying",
    "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "runtime_config", "target_modules", "task_type", "use_rslora",
})
# fmt: on
# Initialisations that change the weights of the model itself.
CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
PLAIN_KEY = re.compile(r"\^?[A-Za-z0-9_.]+")
FACTOR = re.compile(r"(.+)\.(?:lora_(?P<part>[AB])\.weight|lora_embedding_(?P<table>[AB]))")


@dataclass(frozen=True)
class PeftConfig:
    """Configuration of the modules' scales. Patterns are names of modules, or endings of such names."""

    rank: int
    alpha: float
    ranks: dict[str, int]
    alphas: dict[str, float]
    rank_stabilised: bool
    tied: bool

    def scale(self, module: str, rank: int) -> float:
        """alpha / rank, or for rank-stabilised adapters alpha / sqrt(rank) (Kalajdzievski, 2023).

        Raises LoraError if the module's rank is not the configuration's.
        """
        said = of_pattern(self.ranks, module, self.rank)
        if rank != said:
            raise LoraError(f"{module}: its factors have rank {rank}, but {CONFIG} says {said} (r, rank_pattern)")
        alpha = of_pattern(self.alphas, module, self.alpha)
        return check_scale(module, alpha / (math.sqrt(rank) if self.rank_stabilised else rank))


def of_pattern(patterns: dict[str, Any], module: str, default: Any) -> Any:
    for key, value in patterns.items():
        if module == key.removeprefix("^") or (key[0] != "^" and module.endswith(f".{key}")):
            return value
    return default


def read_peft(folder: Path) -> tuple[float, dict[str, Change]]:
    """Alpha, and changes by the module's name in Hugging Face's model.

    Raises LoadError and its children: ModelNotFoundError if a file is missing, LoraError if one is damaged or they
    contradict each other, UnsupportedModelError for other methods than LoRA (DoRA and others), by their names.
    """
    check_folder(folder)
    config = read_config(folder / CONFIG)
    with read_safetensors(folder / WEIGHTS) as file:
        pairs = pair_up(file, folder)
        return config.alpha, {module: read_change(file, module, names, config) for module, names in pairs.items()}


def check_folder(folder: Path) -> None:
    """Raises ModelNotFoundError, which names the files found instead, for a folder without one of PEFT's two files."""
    try:
        names = sorted(os.listdir(folder))
        missing = [name for name in (CONFIG, WEIGHTS) if name not in names]
        if not missing:
            return
        found = elsewhere(folder, names) if names else ": the folder is empty"
    except OSError as e:
        raise ModelNotFoundError(f"{folder}: the folder can't be read: {e.strerror}") from e
    raise ModelNotFoundError(
        f"{folder} has no {' and no '.join(missing)}, which the folder of a PEFT adapter holds{found}"
    )


def elsewhere(folder: Path, names: list[str]) -> str:
    """Hint at an adapter that isn't in the folder itself."""
    if OLD_WEIGHTS in names:
        return f"; {folder / OLD_WEIGHTS} may run code when it is read: save it as safetensors"
    for name in names:
        if name.endswith(".gguf"):
            return f"; an adapter in GGUF is given as its file: {folder / name}"
        if (folder / name / CONFIG).is_file():
            return f": give the folder {folder / name}"
    return ""


def read_config(path: Path) -> PeftConfig:
    with open_file(path) as f:
        try:
            raw = f.read(MAX_CONFIG + 1)
        except OSError as e:
            raise ModelNotFoundError(f"{path}: the file can't be read: {e.strerror}") from e
    try:
        if len(raw) > MAX_CONFIG:
            raise ValueError(f"it has more than {MAX_CONFIG} bytes")
        config = json.loads(raw.decode("utf-8-sig"), parse_constant=refuse)
    except (ValueError, RecursionError) as e:
        raise LoraError(f"{path} is no JSON: {e}") from None
    if not isinstance(config, dict):
        raise LoraError(f"{path} holds a {type(config).__name__}; an object is needed")
    check_supported(path, config)
    return PeftConfig(
        rank=whole(path, "r", config.get("r")),
        alpha=number(path, "lora_alpha", config.get("lora_alpha")),
        ranks=patterns(path, config, "rank_pattern", whole),
        alphas=patterns(path, config, "alpha_pattern", number),
        rank_stabilised=flag(path, config, "use_rslora"),
        tied=flag(path, config, "ensure_weight_tying"),
    )


def check_supported(path: Path, config: dict[str, Any]) -> None:
    """Raises UnsupportedModelError, which names the setting, if an adapter is more than a product of two factors."""
    if config.get("peft_type") != "LORA":
        raise UnsupportedModelError(f"{path}: peft_type is {config.get('peft_type')!r}; supported: LORA")
    if config.get("bias", "none") != "none":
        raise UnsupportedModelError(f"{path}: bias is {config['bias']!r}: adapters with biases are not supported")
    begun = config.get("init_lora_weights", True)
    if isinstance(begun, str) and begun.startswith(CHANGES_BASE):
        raise UnsupportedModelError(
            f"{path}: init_lora_weights is {begun!r}, which changed the model's weights too: save the adapter with "
            "path_initial_model_for_weight_conversion"
        )
    for key, value in config.items():
        if key not in SILENT and value not in (None, False, [], {}, ""):
            raise UnsupportedModelError(f"{path}: {key[:100]} is {str(value)[:100]}, which is not supported")


def pair_up(file: SafeTensors, folder: Path) -> dict[str, dict[str, str]]:
    """Names of the factors of each module: A and B, or those of a table."""
    found: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        match = FACTOR.fullmatch(name)
        if "lora_magnitude" in name:
            raise UnsupportedModelError(f"{folder}: {name[:200]}: DoRA (magnitudes) is not supported")
        if match is None:
            raise UnsupportedModelError(f"{folder}: tensor {name[:200]} is no factor of a change (lora_A, lora_B)")
        module = match[1].removeprefix("base_model.model.")
        parts, part = found.setdefault(module, {}), match["part"] or "table " + match["table"]
        if parts.setdefault(part, name) != name:
            raise LoraError(f"{folder}: {parts[part][:200]} and {name[:200]} are the same factor")
    for module, names in found.items():
        if set(names) not in ({"A", "B"}, {"table A", "table B"}):
            raise LoraError(
                f"{folder}: {module[:200]} has {', '.join(names.values())[:300]}; lora_A and lora_B are needed"
            )
    if not found:
        raise LoraError(f"{folder}: the adapter has no tensors")
    return found


def read_change(file: SafeTensors, module: str, names: dict[str, str], config: PeftConfig) -> Change:
    """The change of a module. A table's factors are transposed: its A has a column for each row of the table."""
    table = "table A" in names
    first, second = (names["table A"], names["table B"]) if table else (names["A"], names["B"])
    shapes = [file.tensors[name].shape for name in (first, second)]
    if any(len(shape) != 2 for shape in shapes):
        raise LoraError(f"{module}: factors of shapes {shapes[0]} and {shapes[1]}; two matrices are needed")
    check_shapes(module, *shapes)
    a, b = file.values(first), file.values(second)
    check_values(first, a)
    check_values(second, b)
    scale = config.scale(module, shapes[0][0])
    return Change(b.T, a.T, scale, lookups=not config.tied) if table else Change(a, b, scale)


def whole(path: Path, name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise LoraError(f"{path}: {name} is {str(value)[:100]}; a whole number from 1 on is needed")
    return value


def number(path: Path, name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < abs(value) <= 1e9:
        raise LoraError(f"{path}: {name} is {str(value)[:100]}; a number is needed that is not 0")
    return float(value)


def flag(path: Path, config: dict[str, Any], name: str) -> bool:
    value = config.get(name, False)
    if not isinstance(value, bool | None):
        raise LoraError(f"{path}: {name} is {str(value)[:100]}; true or false is needed")
    return bool(value)


def patterns(path: Path, config: dict[str, Any], name: str, check: Any) -> dict[str, Any]:
    """Names of modules with their values. Other regular expressions are refused: matching them may take for ever."""
    found = config.get(name) or {}
    if not isinstance(found, dict):
        raise LoraError(f"{path}: {name} must map names of modules to numbers")
    for key in found:
        if not PLAIN_KEY.fullmatch(key):
            raise UnsupportedModelError(
                f"{path}: {name} has {key[:100]!r}; names of modules are supported, no patterns"
            )
    return {key: check(path, f"{name}[{key}]", value) for key, value in found.items()}
