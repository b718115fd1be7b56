"""What other programs, a hypervisor and quotas take of the CPUs while something is measured is told beside it."""

import json
import os
from dataclasses import replace

import pytest

from oxillama.cli import contention, doctor, machine
from oxillama.cli.contention import Contention, Watch

MOUNT = "36 25 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
HERTZ = os.sysconf("SC_CLK_TCK")
ALONE = Contention(load=0.5, hardware=4, quota=None, others=0.02, stolen=0.0, stopped=0, share=0.98)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """root(files) -> a folder that holds proc and sys, of a machine with four hardware threads."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)

    def make(**files):
        first = {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": MOUNT,
            "proc/loadavg": "0.50 1 1 1/9 9\n",
            "sys/devices/system/cpu/online": "0-3\n",
        }
        for name, text in {**first, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


def stat(busy, idle, stolen=0):
    """Seconds of each of five hardware threads, of which this process may use four."""
    cpu = f"{busy * HERTZ} 0 0 {idle * HERTZ} 0 0 0 {stolen * HERTZ} 0 0"
    return "".join(f"cpu{i} {cpu}\n" for i in range(4)) + f"cpu4 {9**9} 0 0 0 0 0 0 0 0 0\nintr 5 5\n"


def test_others_are_all_that_was_busy_but_this_process(root, monkeypatch):
    clock = iter([0.0, 4.0])
    monkeypatch.setattr(contention.time, "process_time", lambda: next(clock))
    watch = Watch(root(**{"proc/stat": stat(1, 1)}))
    root(**{"proc/stat": stat(9, 3)})
    found = watch.end()
    assert (found.others, found.stolen, found.hardware, found.load) == ((32 - 4) / 40, 0.0, 4, 0.5)
    assert "other programs had 70% of the CPUs" in found.said
    assert "(load 0.5 on 4 hardware threads)" in found.said


def test_what_a_hypervisor_took(root):
    watch = Watch(root(**{"proc/stat": stat(1, 1)}))
    root(**{"proc/stat": stat(1, 10, 1)})
    assert watch.end().stolen == 0.1


def test_a_quota_that_stops_the_process(root):
    files = {"sys/fs/cgroup/cpu.max": "150000 100000\n", "sys/fs/cgroup/cpu.stat": "nr_periods 9\nnr_throttled 4\n"}
    watch = Watch(root(**files))
    root(**files | {"sys/fs/cgroup/cpu.stat": "nr_periods 20\nnr_throttled 11\n"})
    found = watch.end()
    assert (found.stopped, found.quota) == (7, 1.5)
    assert "the CPU quota of 1.5 cores stopped this process 7 times" in found.said


@pytest.mark.parametrize("text", ["", "cpu0 a b c\n", "cpu0\n", "cpu 1 2 3 4 5 6 7 8\n"])
def test_files_in_another_form_count_as_unknown(root, text):
    found = Watch(root(**{"proc/stat": text, "proc/loadavg": "x"})).end()
    assert (found.others, found.stolen, found.load) == (None, None, None)


def test_a_thread_that_waits_is_told(root):
    watch = Watch(root(**{"proc/stat": stat(1, 1)}))
    contention.time.sleep(0.05)
    found = watch.end()
    assert found.share < 0.7
    assert "the thread that measured ran" in found.said


@pytest.mark.parametrize(("change", "said"), [
    ({}, ""),
    ({"others": None, "stolen": None, "load": None}, ""),
    ({"others": 0.5}, "other programs had 50%"),
    ({"stolen": 0.2}, "the hypervisor gave 20%"),
    ({"stopped": 3, "quota": 2.0}, "the CPU quota of 2 cores stopped this process 3 times"),
    ({"share": 0.3}, "the thread that measured ran 30% of the time"),
    ({"load": 15.0}, "more threads wanted to run in the last minute than there are CPUs (load 15.0 on 4"),
])  # fmt: skip
def test_why_figures_are_not_of_the_machine(change, said):
    assert replace(ALONE, **change).said.startswith(said)
    assert bool(replace(ALONE, **change).said) == bool(said)


@pytest.mark.parametrize(("taken", "trusted"), [(ALONE, True), (replace(ALONE, load=15.0, others=0.9), False)])
def test_the_bandwidth_says_whether_it_is_of_the_machine(root, monkeypatch, taken, trusted):
    found = machine.Bandwidth(9e9, 12e9, 2, 1 << 28, 8e9, 11e9, taken)
    monkeypatch.setattr(machine, "read_speed", lambda *ignored: found)
    finding = doctor.bandwidth(0.1, root())
    assert finding.values["trusted"] is trusted
    assert finding.said.startswith("9.0 GB/s") == trusted
    assert bool(finding.change) != trusted
    if not trusted:
        assert finding.said.startswith(
            "not of the machine alone, since other programs had 90% of the CPUs (load 15.0 on 4"
        )
        assert finding.said.endswith("medians 8.0 and 11.0 GB/s")
    json.dumps(finding.values)


def test_medians_are_of_the_passes(root, monkeypatch):
    monkeypatch.setattr(machine, "LEAST_BYTES", 4 << 20)
    found = machine.read_speed(0.05, 2, None, root())
    assert 0 < found.one_median <= found.one
    assert 0 < found.all_median <= found.all
    assert 0 < found.contention.share <= 1


def test_the_load_is_told_with_the_quota_and_of_one_thread_too(root, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = doctor.load(root(**{"proc/loadavg": "15.0 1 1 1/9 9\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}))
    assert "15.0 threads of all programs wanted to run" in found.said
    assert found.said.endswith("of which the control groups allow 2.5")
    assert found.change.startswith("end other programs")
    assert found.values == {"load": 15.0, "hardware": 4, "quota": 2.5}


def test_bench_says_what_was_taken_meanwhile(run, monkeypatch):
    flags = ["--prompt-tokens", 8, "--gen-tokens", 3, "--repetitions", 1, "-t", 1]
    monkeypatch.setattr("oxillama.cli.bench.Watch", lambda: type("W", (), {"end": lambda self: ALONE})())
    assert "not of the machine" not in run("bench", *flags)[1]
    monkeypatch.setattr(
        "oxillama.cli.bench.Watch", lambda: type("W", (), {"end": lambda self: replace(ALONE, load=15)})()
    )
    assert "not of the machine alone: more threads wanted" in run("bench", *flags)[1]
    assert json.loads(run("bench", "--json", *flags)[1])["contention"]["load"] == 15
