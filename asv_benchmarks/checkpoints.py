"""A model of random weights in the formats of other runtimes: python checkpoints.py FOLDER FORMAT

FOLDER/transformers is made first, a Llama of the shape of Llama 3.2 1B in bfloat16 with a tokenizer of as many tokens,
and then FOLDER/FORMAT of it by that runtime's own converter, where it isn't there. It runs in the environment that has
torch, transformers and the runtime. Weights differ in each layer: a format that keeps equal ones once would otherwise
be read from the CPU's caches.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

CHECKPOINT = "transformers"
SPECIAL = ["<s>", "</s>", "<unk>"]
N_VOCAB = 128256


def write_checkpoint(out: Path) -> None:
    """The model, as transformers has it."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    config = transformers.LlamaConfig(
        vocab_size=N_VOCAB, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=500000.0,
        tie_word_embeddings=True, bos_token_id=256, eos_token_id=257, dtype="bfloat16",
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(out)
    tokenizer(transformers).save_pretrained(out)


def tokenizer(transformers: Any) -> Any:
    """Bytes, the special tokens, and then token i is called "wi"."""
    tokenizers: Any = import_module("tokenizers")
    bytes_ = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = bytes_ + SPECIAL
    names += [f"w{i}" for i in range(len(names), N_VOCAB)]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    bos, eos, unk = SPECIAL
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token=bos, eos_token=eos, unk_token=unk)


def run(*command: object) -> None:
    """A converter of this environment."""
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


def openvino(weights: str) -> Callable[[Path, Path], None]:
    program = Path(sys.executable).with_name("optimum-cli")
    return lambda model, out: run(
        program, "export", "openvino", "--model", model, "--task", "text-generation-with-past",
        "--weight-format", weights, out,
    )  # fmt: skip


def ctranslate2(model: Path, out: Path) -> None:
    program = Path(sys.executable).with_name("ct2-transformers-converter")
    run(program, "--model", model, "--output_dir", out, "--quantization", "int8")


def onnxruntime_genai(model: Path, out: Path) -> None:
    builder = "onnxruntime_genai.models.builder"
    run(sys.executable, "-m", builder, "-i", model, "-o", out, "-p", "int4", "-e", "cpu", "-c", out.parent / "cache")


FORMATS: dict[str, Callable[[Path, Path], None]] = {
    "openvino-int4": openvino("int4"),
    "openvino-int8": openvino("int8"),
    "ctranslate2-int8": ctranslate2,
    "onnxruntime-genai-int4": onnxruntime_genai,
}


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    model, out = folder / CHECKPOINT, folder / name
    if not model.exists():
        part = model.with_suffix(".part")
        write_checkpoint(part)
        part.rename(model)
    if name != CHECKPOINT and not out.exists():
        part = out.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        FORMATS[name](model, part)
        part.rename(out)


if __name__ == "__main__":
    main()
