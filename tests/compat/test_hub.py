"""`from_pretrained` with the Hub's own library, from a stand-in for the Hub and from the cache alone."""

import json

import pytest

from tests.hub import Hub, answer_of

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
    return answer_of(SCRIPT, endpoint, home, offline, arguments)


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
