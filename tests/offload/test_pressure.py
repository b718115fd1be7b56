"""Readings of a machine's memory, with any part of them missing, and the budgets that follow."""

import random

import pytest

from oxillama.offload import MemoryPressureProbe, MemoryReading
from oxillama.offload.sizing import GROWTH, first_budget, next_budget

GB = 1 << 30
FILES = {
    "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:  1048576 kB\nMemAvailable:    8388608 kB\n",
    "proc/pressure/memory": "some avg10=2.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.00 total=1\n",
    "proc/self/cgroup": "1:name=systemd:/old\n0::/a/b\n",
    "sys/fs/cgroup/a/memory.max": f"{6 * GB}\n",
    "sys/fs/cgroup/a/memory.high": "max\n",
    "sys/fs/cgroup/a/memory.current": f"{5 * GB}\n",
    "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {2 * GB}\n",
    "sys/fs/cgroup/a/b/memory.max": "max\n",
    "sys/fs/cgroup/a/b/memory.high": f"{4 * GB}\n",
    "sys/fs/cgroup/a/b/memory.current": f"{3 * GB}\n",
    "sys/fs/cgroup/a/b/memory.pressure": "some avg10=40.00 avg60=1.00 avg300=0.10 total=5\n",
}


@pytest.fixture
def machine(tmp_path):
    """machine(changes) -> reading of a machine whose files are FILES with some of them changed, or missing (None)."""

    def call(changes=None):
        for name, text in (FILES | (changes or {})).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return MemoryPressureProbe(tmp_path).read()

    return call


def test_the_least_of_machine_and_groups(machine):
    assert machine() == MemoryReading(4 * GB, 1 * GB, 0.4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"proc/self/cgroup": None}, MemoryReading(16 * GB, 8 * GB, 0.025)),
        ({"proc/self/cgroup": "0::/\n"}, MemoryReading(16 * GB, 8 * GB, 0.025)),
        ({"proc/self/cgroup": "0::/elsewhere\n", "proc/pressure/memory": None}, MemoryReading(16 * GB, 8 * GB, None)),
        ({"proc/meminfo": None}, MemoryReading(4 * GB, 1 * GB, 0.4)),
        ({"proc/meminfo": "MemTotal: 1024 kB\nMemFree: 512 kB\n"}, MemoryReading(1 << 20, 1 << 19, 0.4)),
        ({"sys/fs/cgroup/a/b/memory.high": None}, MemoryReading(6 * GB, 3 * GB, 0.4)),
        ({"sys/fs/cgroup/a/b/memory.current": "what\n"}, MemoryReading(4 * GB, 3 * GB, 0.4)),
        ({"sys/fs/cgroup/a/b/memory.pressure": "some avg10=1.2.3\n"}, MemoryReading(4 * GB, 1 * GB, 0.025)),
        ({"sys/fs/cgroup/a/b/memory.current": f"{9 * GB}"}, MemoryReading(4 * GB, 0, 0.4)),
        ({"proc/meminfo": b"\xff\x00\xfe"}, MemoryReading(4 * GB, 1 * GB, 0.4)),
        ({"proc/self/cgroup": "0::/../../etc\n"}, MemoryReading(16 * GB, 8 * GB, 0.025)),
        (dict.fromkeys(FILES), MemoryReading(None, None, None)),
    ],
)
def test_missing_and_malformed_values_are_unknown(machine, changes, expected):
    assert machine(changes) == expected


def test_this_machine_can_be_read():
    reading = MemoryPressureProbe().read()
    assert reading.available is None or 0 <= reading.available <= (reading.total or 1 << 62)
    assert reading.stalled is None or 0 <= reading.stalled <= 1


def test_the_first_budget_is_the_spare_memory():
    reading = MemoryReading(10 * GB, 4 * GB, 0.0)
    assert first_budget(reading, None, 1, 100 * GB) == 3 * GB
    assert first_budget(reading, 0, 1, 100 * GB) == 4 * GB
    assert first_budget(reading, None, 1, 2 * GB) == 2 * GB
    assert first_budget(reading, 20 * GB, 7, 2 * GB) == 7
    assert first_budget(MemoryReading(None, None, None), None, 1, 2 * GB) == 2 * GB


def test_a_budget_shrinks_at_once_and_grows_bit_by_bit():
    least, most = 1 * GB, 8 * GB
    assert next_budget(4 * GB, MemoryReading(10 * GB, 0, 0.0), None, least, most) == 3 * GB
    assert next_budget(4 * GB, MemoryReading(10 * GB, 8 * GB, 0.5), None, least, most) == 4 * GB - GB // 2
    assert next_budget(least, MemoryReading(10 * GB, 0, 1.0), None, least, most) == least
    assert next_budget(4 * GB, MemoryReading(10 * GB, 8 * GB, 0.0), None, least, most) == 4 * GB + GROWTH
    assert next_budget(4 * GB, MemoryReading(10 * GB, GB + GB // 4, None), None, least, most) == 4 * GB
    assert next_budget(4 * GB, MemoryReading(None, None, None), None, least, most) == 4 * GB
    assert next_budget(most, MemoryReading(10 * GB, 9 * GB, 0.0), None, least, most) == most


@pytest.mark.parametrize("seed", range(20))
def test_a_budget_settles_and_stays_within_its_bounds(seed):
    """Memory that others use comes and goes; then it stays, and so does the budget, with the reserve untouched."""
    rng = random.Random(seed)
    total, least, most, reserve = 16 * GB, GB, 12 * GB, GB
    budget, others = most, 0
    for step in range(400):
        if step < 200 and rng.random() < 0.1:
            others = rng.randint(0, 12 * GB)
        reading = MemoryReading(total, max(0, total - others - budget), rng.choice([0.0, None]))
        before, budget = budget, next_budget(budget, reading, reserve, least, most)
        assert least <= budget <= most
    assert budget == before
    assert total - others - budget >= reserve
