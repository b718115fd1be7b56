"""python -m tests.engine.texts: what the shipped model writes, in the tier that OXILLAMA_TIER names.

With --write it is recorded; with the path of a snapshot, whose request goes on, it is what follows there.
"""

import json
import sys
from pathlib import Path

import oxillama as ox

RECORDED = Path(__file__).with_name("texts.json")
PROMPTS = ("Once upon a time", "The little fox wanted to know why the sky")
# Every stage that computes something: by sums, by logarithms, and by powers.
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "usual": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "typical": {"typical_p": 0.9, "eta_cutoff": 0.002},
    "dynamic": {"temperature": 0.9, "dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
    "mirostat": {"mirostat": 1, "mirostat_tau": 4.0},
    "mirostat_v2": {"mirostat": 2, "mirostat_tau": 4.0},
    "dry": {"dry_multiplier": 0.8, "repetition_penalty": 1.1, "top_a": 0.2, "top_n_sigma": 2.0},
}


def texts(kv_type):
    """Tokens and log-probabilities of each prompt with each of the settings."""
    found = {}
    with ox.load(num_threads=2, kv_type=kv_type) as engine:
        for name, options in SETTINGS.items():
            done = engine.generate(list(PROMPTS), max_tokens=48, seed=7, logprobs=0, ignore_eos=True, **options)
            shown = [[one.token_ids, [entry.logprob.hex() for entry in one.logprobs]] for one in done]
            found[f"{name} {kv_type}"] = shown
    return found


def going_on(snapshot):
    """The tokens that a saved request still gives."""
    with ox.load(num_threads=1) as engine:
        return [token for chunk in engine.resume(snapshot) for token in chunk.token_ids]


def main():
    if len(sys.argv) > 1 and sys.argv[1] != "--write":
        print(json.dumps(going_on(sys.argv[1])))
        return
    shown = json.dumps(texts("f16") | texts("q8_0")) + "\n"
    if len(sys.argv) > 1:
        RECORDED.write_text(shown)
    else:
        print(shown, end="")


if __name__ == "__main__":
    main()
