"""The package `guidance`, where it is installed: it computes by `llama_decode` and masks by its own grammars."""

import importlib.util
import subprocess
import sys

import pytest

from oxillama.core.loading import shipped_model

pytestmark = pytest.mark.skipif(importlib.util.find_spec("guidance") is None, reason="the package guidance isn't there")

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import oxillama.compat
oxillama.compat.install()
import llama_cpp
from guidance import gen, json, models, select

llm = llama_cpp.Llama(sys.argv[1], n_ctx=256, verbose=False)
lm = models.LlamaCpp(llm, echo=False)
lm += "The animal is a " + select(["cat", "dog", "hen"], name="one") + gen(regex=" [0-9]{2}", name="two")
lm += ". Once upon a time" + gen(max_tokens=12, temperature=0, name="three")
greedy = llm.engine.generate(str(lm).removesuffix(lm["three"]), max_tokens=12, temperature=0).text
schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
found = models.LlamaCpp(sys.argv[1], n_ctx=256, echo=False) + json(schema=schema, name="four", max_tokens=30)
print([lm["one"] in ("cat", "dog", "hen"), len(lm["two"]), lm["three"] == greedy, found["four"]])
"""


def test_programs_run_unchanged():
    run = subprocess.run([sys.executable, "-c", PROGRAM, shipped_model()], capture_output=True, text=True, check=True)
    assert run.stdout.strip() in [str([True, 3, True, f'{{"a": "{letter}"}}']) for letter in "xy"]
