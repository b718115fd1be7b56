"""A field that is added to `SamplerConfig` shows in help, on the command line, in the server and on the site.

It is planted in a copy of the package that is links but for two files: the field, and the keyword for static typing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama

ROOT = Path(oxillama.__file__).parent
FIELD = '    zeal: float = setting(0.25, "eagerness of the sampler.", least=0, most=4, brief="eagerness")\n'

PROGRAM = """
import contextlib, inspect, io, json
import oxillama
from oxillama.cli import main
from oxillama.server.__main__ import tables
from oxillama.server.fields import CHAT, COMPLETIONS
from oxillama.server.fields_ollama import OPTIONS

def helped(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()

engine = oxillama.load(num_threads=1)
found = {
    "help": "zeal: eagerness of the sampler." in inspect.getdoc(oxillama.SamplerConfig),
    "call": bool(engine.generate("a", zeal=1, max_tokens=1).token_ids),
    "run": "--zeal X" in helped("run"), "chat": "--zeal X" in helped("chat"), "batch": "--zeal X" in helped("batch"),
    "tables": tables().count("| `zeal` | number 0 … 4 | eagerness |"),
    "schemas": [record.schema()["properties"]["zeal"] for record in (CHAT, COMPLETIONS, OPTIONS)],
}
try:
    engine.generate("a", zeal=5)
except oxillama.ConfigError as error:
    found["error"] = str(error)
try:
    import griffe
except ImportError:
    found["site"] = None
else:
    from tests.site.docstrings import PlainDocstrings
    package = griffe.load("oxillama", extensions=griffe.load_extensions(PlainDocstrings))
    found["site"] = "`zeal`: eagerness of the sampler." in package["sampler_config.SamplerConfig"].docstring.value
print(json.dumps(found))
"""


@pytest.fixture
def planted(tmp_path):
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name != "__pycache__"]
        target = tmp_path / "oxillama" / Path(folder).relative_to(ROOT)
        target.mkdir()
        for name in files:
            (target / name).symlink_to(Path(folder) / name)
    plant(tmp_path / "oxillama" / "sampler_config.py", FIELD, "    min_tokens: int = setting(\n")
    plant(tmp_path / "oxillama" / "keywords.py", "    zeal: float\n", "    min_p: float\n")
    return tmp_path


def plant(source, line, before):
    text = source.read_text()
    source.unlink()
    assert text.count(before) == 1
    source.write_text(text.replace(before, line + before))


def test_a_planted_field_shows_everywhere(planted):
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{planted}{os.pathsep}{ROOT.parent}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    site = found.pop("site")
    assert site in (True, None)
    schema = found.pop("schemas")
    assert [(one["minimum"], one["maximum"]) for one in schema] == [(0, 4)] * 3
    assert found.pop("tables") >= 2
    assert found.pop("error") == "zeal must be a number from 0 to 4, not 5"
    assert all(found.values()), found
