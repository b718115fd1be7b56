"""Pulls of several processes, of one that is killed, and without a network."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oxillama.store.transfer import TIMEOUT
from tests.hub import Hub, environment, fail, put

pytest.importorskip("huggingface_hub")

DATA = bytes(range(256)) * 4096


def pulling(hub, home, name="hf:owner/model/m.gguf"):
    command = [sys.executable, "-m", "oxillama", "pull", name, "--json"]
    return subprocess.Popen(
        command, env=environment(hub, home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_send_for_the_bytes_once(hub, tmp_path):
    put("m.gguf", DATA)
    fail("m.gguf", ("slow", 0.05), ("slow", 0.05))
    both = [pulling(hub, tmp_path) for _ in range(2)]
    answers = []
    for one in both:
        out, err = one.communicate(timeout=120)
        assert one.returncode == 0, err
        answers.append(json.loads(out))
    assert answers[0]["path"] == answers[1]["path"]
    assert Path(answers[0]["path"]).read_bytes() == DATA
    assert sorted(one["new"] for one in answers) == [0, 1]
    assert Hub.n_sent == len(DATA)


def test_a_killed_process_leaves_what_came(hub, tmp_path):
    put("m.gguf", DATA)
    fail("m.gguf", ("slow", 0.3))
    first = pulling(hub, tmp_path)
    while Hub.n_sent < 4 << 16:
        time.sleep(0.02)
        assert first.poll() is None, first.communicate()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (part,) = (tmp_path / "hub/models--owner--model/blobs").iterdir()
    here = part.stat().st_size
    assert 0 < here < len(DATA)
    assert not (tmp_path / "store/owner/model/m.gguf").is_symlink()
    Hub.ranges.clear()
    second = pulling(hub, tmp_path)
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert Path(json.loads(out)["path"]).read_bytes() == DATA
    assert Hub.ranges == [f"bytes={here}-"]


def test_ctrl_c_ends_a_pull_at_once(hub, tmp_path):
    put("m.gguf", DATA)
    fail("m.gguf", ("slow", 0.3))
    first = pulling(hub, tmp_path)
    while Hub.n_sent < 2 << 16:
        time.sleep(0.02)
        assert first.poll() is None, first.communicate()
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "Traceback" not in err


SCRIPT = """
import json, sys, time
import huggingface_hub.constants
import oxillama as ox
begin = time.monotonic()
try:
    ox.load(sys.argv[1])
except ox.OxiLlamaError as error:
    print(json.dumps([time.monotonic() - begin, type(error).__name__, str(error)]))
"""


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "https://hub.invalid", "proxy"])
@pytest.mark.parametrize("name", ["hf:o/r", "hf:o/r:Q8_0", "hf:o/r/m.gguf"])
def test_without_a_network_there_is_an_answer_soon(tmp_path, endpoint, name):
    """A name server or a host that gives no answer isn't waited for: the message says what to look at."""
    env = environment(endpoint, tmp_path)
    if endpoint == "proxy":
        env |= {"HF_ENDPOINT": "https://huggingface.co", "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, name], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seconds, kind, message = json.loads(done.stdout)
    assert kind == "ModelNotFoundError"
    assert message.startswith(name) or "'m.gguf' of 'o/r'" in message
    assert "is not here, and the Hub can't be reached at" in message
    assert seconds < TIMEOUT  # which the library would wait for an answer, several times
