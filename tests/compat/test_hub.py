"""`from_pretrained` with the Hub's own library, from a stand-in for the Hub and from the cache alone."""

import json
import os
import subprocess
import sys

import pytest

from tests.hub import Hub

pytest.importorskip("huggingface_hub")

SCRIPT = """
import json, sys
import oxillama.compat as llama_cpp
try:
    with llama_cpp.Llama.from_pretrained(**json.loads(sys.argv[1]), n_ctx=64, n_threads=1) as model:
        print(json.dumps(["ok", model.n_ctx()]))
except ValueError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def from_pretrained(endpoint, home, offline, **arguments):
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
    env |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(arguments)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Listing(dict):
    """The stand-in's files, and for any question about the repository's tree the list of their names."""

    def get(self, path, default=None):
        if path.startswith("/api/models/owner/model/tree/"):
            names = [path.rpartition("/")[2] for path in self]
            return json.dumps([{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]).encode()
        return super().get(path, default)


def test_patterns_from_the_hub_and_from_the_cache(hub, tmp_path):
    Hub.files = Listing(Hub.files)
    arguments = {"repo_id": "owner/model", "filename": "*iny*"}
    assert from_pretrained(hub, tmp_path, True, **arguments)[0] == "NoFileError"
    assert from_pretrained(hub, tmp_path, False, **arguments) == ["ok", 64]
    Hub.requests.clear()
    assert from_pretrained(hub, tmp_path, True, **arguments) == ["ok", 64]
    assert Hub.requests == []
    kind, message = from_pretrained(hub, tmp_path, False, repo_id="owner/model", filename="*.gguf")
    assert (kind, "bad.gguf, tiny.gguf" in message) == ("ConfigError", True)
