"""Memory of models: what there is, by the control group too, and which model leaves when it is short."""

import asyncio
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.cli import main
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError
from oxillama.offload.pressure import MemoryPressureProbe
from oxillama.server import ServerConfig, create_app
from oxillama.server import models as served_models
from oxillama.server.memory import check_memory, is_short_of, shown_bytes, weight_bytes
from oxillama.server.models import ServedModel
from tests.server.client import Client

GIB = 1 << 30


@pytest.fixture
def probe(tmp_path):
    """A machine of 8 GiB, 3 of them available, whose control group has 2 GiB and uses one."""
    group = tmp_path / "sys/fs/cgroup/app"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: {3 << 20} kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/app\n")
    (group / "memory.max").write_text(f"{2 * GIB}\n")
    (group / "memory.current").write_text(f"{GIB}\n")
    return MemoryPressureProbe(tmp_path)


def test_models_have_to_fit_the_control_group(probe, tmp_path):
    check_memory({"a": GIB, "b": GIB}, probe)
    with pytest.raises(
        ConfigError, match=r"^the models need 2.5 GiB .*\(a 1.5 GiB, b 1.0 GiB\), and there are 2.0 GiB"
    ):
        check_memory({"a": 3 * GIB // 2, "b": GIB}, probe)
    check_memory({"a": 99 * GIB}, MemoryPressureProbe(tmp_path / "none"))  # of which nothing is known
    assert not is_short_of(GIB, probe)
    assert is_short_of(GIB + 1, probe)
    assert shown_bytes(3 << 20) == "3.0 MiB"


def test_parts_of_a_model_count_together(tmp_path):
    for i in (1, 2):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_bytes(b"x" * 10 * i)
    assert weight_bytes(str(tmp_path / "m-00001-of-00002.gguf")) == 30
    assert weight_bytes(str(tmp_path / "m-00002-of-00002.gguf")) == 30
    assert weight_bytes(str(tmp_path / "none.gguf")) == 0


def test_a_server_that_has_no_room_does_not_start(tmp_path, capsys):
    path = tmp_path / "large.gguf"
    path.write_bytes(Path(shipped_model()).read_bytes())
    with path.open("r+b") as file:
        file.truncate(1 << 43)  # a hole behind the model
    assert main(["serve", "-m", str(path), "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "the models need 8192.0 GiB for their weights alone (large" in error
    assert error.count("\n") == 1


def test_an_idle_model_leaves_when_memory_is_short(monkeypatch):
    def load():
        return ox.load(num_threads=1)

    first, second = (ServedModel(name, load=load, at_start=False, weights=7) for name in ("first", "second"))
    client = Client(create_app({m.id: m for m in (first, second)}, ServerConfig()))
    states = lambda: client.get("/ready").json["models"]  # noqa: E731
    wanted = []
    monkeypatch.setattr(served_models, "is_short_of", lambda n: wanted.append(n) or len(wanted) > 1)
    for name in ("first", "second"):
        assert client.post("/v1/completions", model=name, prompt="a", max_tokens=1).status == 200
    assert wanted == [7]
    assert states() == {"first": "ready", "second": "ready"}
    asyncio.run(client.app.service.models.unload(second))
    assert client.post("/v1/completions", model="second", prompt="a", max_tokens=1).status == 200
    assert states() == {"first": "idle", "second": "ready"}
    asyncio.run(client.app.service.models.close())
