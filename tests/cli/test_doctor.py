"""`oxillama doctor`: what it finds on machines that folders of files describe, and what it says to change."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

import oxillama as ox
from oxillama.cli import doctor, machine
from oxillama.cli.machine import Limit
from oxillama.kernels import _table
from oxillama.kernels._cores import throttled

MOUNT = "36 25 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


@pytest.fixture
def root(tmp_path):
    """root(files) -> a folder that holds proc and sys, with one CPU and no limits but those in the files."""

    def make(**files):
        written = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": MOUNT, "sys/devices/system/cpu/online": "0\n"}
        for name, text in {**written, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


def test_json_holds_what_the_text_says(run):
    status, out, err = run("doctor", "--json", "--seconds", 0)
    report = json.loads(out)
    assert (status, err) == (report["status"], "")
    topics = [f["topic"] for f in report["findings"]]
    assert topics == ["installation", "model", "cpu", "openmp", "threads", "load", "huge pages", "memory", "limits"]
    assert status == (1 if any(f["change"] for f in report["findings"]) else 0)
    values = {f["topic"]: f["values"] for f in report["findings"]}
    assert values["cpu"]["tier_in_use"] == _table.tier()
    assert values["installation"]["version"] == ox.__version__
    lines = run("doctor", "--seconds", 0)[1].splitlines()
    assert [line[7:21].strip() for line in lines if not line.startswith(" ")] == topics
    assert all(line.split()[0] in ("ok", "change") for line in lines if not line.startswith(" "))


def test_the_distribution_of_another_project_is_told(monkeypatch):
    installed = {"oxillama-cpu": "0.1.0"}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    assert doctor.installation().change == ""
    installed["oxillama"] = "0.3.0"
    found = doctor.installation()
    assert "beside the distribution oxillama 0.3.0" in found.said
    assert found.change.startswith("pip uninstall oxillama oxillama-cpu, ")
    assert (found.values["distribution"], found.values["other_distribution"]) == ("0.1.0", "0.3.0")
    installed.clear()  # a source tree that is not installed
    assert (doctor.installation().change, doctor.installation().values["distribution"]) == ("", None)


@pytest.mark.parametrize("seconds", ["-1", "61", "nan"])
def test_seconds_out_of_range(run, seconds):
    status, _, err = run("doctor", f"--seconds={seconds}")
    assert (status, "--seconds must be from 0 to 60" in err) == (2, True)


def test_modules_are_imported_first(run):
    assert run("doctor", "--import", "no_such_module")[::2] == (
        2,
        "oxillama: error: --import no_such_module: No module named 'no_such_module'\n",
    )
    assert run("doctor", "--import", "json", "--seconds", 0)[0] in (0, 1)


@pytest.mark.parametrize("name", ["", ".x", "x.", "a b", "raises", "leaves"])
def test_modules_that_can_not_be_imported(run, monkeypatch, tmp_path, name):
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "leaves.py").write_text("raise SystemExit(5)")
    monkeypatch.syspath_prepend(tmp_path)
    status, out, err = run("doctor", "--import", name)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("oxillama: error: --import ")


@pytest.mark.parametrize("arguments", [["info"], ["doctor"], ["bench"]])  # --version loads no kernel
def test_a_tier_that_is_none_ends_in_one_line(arguments):
    env = os.environ | {"OXILLAMA_TIER": "nonsense"}
    command = [sys.executable, "-m", "oxillama", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("oxillama: error: OXILLAMA_TIER='nonsense': ")


def test_a_model_that_fails_is_reported_and_the_rest_is_told(run, monkeypatch):
    def load(**_):
        raise ox.LoadError("no weights")

    monkeypatch.setattr(ox, "load", load)
    status, out, _ = run("doctor", "--seconds", 0)
    assert status == 2
    assert "FAILS  model         the shipped model fails: no weights\n" in out
    assert "limits" in out


def test_texts_that_depend_on_threads_are_a_failure(monkeypatch):
    texts = iter(["a", "b"])

    class Engine:
        __enter__ = __exit__ = lambda self, *_: self

        def generate(self, *_, **__):
            return type("Completion", (), {"text": next(texts)})

    monkeypatch.setattr(ox, "load", lambda num_threads: Engine())
    found = doctor.answer()
    assert found.broken
    assert found.said == "the shipped model gives 'a' with one thread and 'b' with all"


@pytest.mark.parametrize(("compiled", "change"), [((), "build with binutils"), (("amx",), "let the process use")])
def test_amx_that_is_not_used_is_to_be_changed(compiled, change, monkeypatch, root):
    files = root(**{"proc/cpuinfo": "flags\t\t: avx2 amx_bf16 avx512f amx_tile amx_int8\n"})
    monkeypatch.setattr(_table, "compiled_tiers", lambda: ("scalar", "avx512", *compiled))
    monkeypatch.setattr(_table, "detected_tier", lambda: "avx512")
    monkeypatch.setattr(_table, "tier", lambda: "avx512")
    assert doctor.cpu(files).change.startswith(change)


def test_a_lower_tier_than_the_cpu_has_is_to_be_changed():
    if len(_table.usable_tiers()) == 1:
        pytest.skip("this machine has one tier")
    env = os.environ | {"OXILLAMA_TIER": "scalar"}
    code = "from oxillama.cli.doctor import cpu; print(cpu().said); print(cpu().change)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    said, change = done.stdout.splitlines()
    assert "kernels of the tier scalar" in said
    assert change == f"unset OXILLAMA_TIER: this CPU can run {_table.detected_tier()}"


@pytest.mark.parametrize(
    ("info", "name", "features"),
    [
        (
            "model name\t: A CPU @ 2\nflags\t\t: fpu avx2 fma avx512f\n\nmodel name\t: B\n",
            "A CPU @ 2",
            "fma avx2 avx512f",
        ),
        ("Features\t: fp asimd asimddp i8mm\n", "", "asimd asimddp i8mm"),
        ("", "", ""),
    ],
)
def test_cpu_name_and_features(root, info, name, features):
    files = root(**{"proc/cpuinfo": info})
    assert (machine.cpu_name(files), " ".join(machine.cpu_features(files))) == (name, features)


def test_openmp_libraries(root, monkeypatch):
    rows = "".join(
        f"7f00{i}000-7f00{i}fff r-xp 00000000 fe:00 {i}    {path}\n"
        for i, path in enumerate(
            ["/usr/lib/libgomp.so.1.0.0", "/usr/lib/libgomp.so.1.0.0", "/v/oxillama.libs/libgomp-98df74fd.so.1.0.0",
             "/v/torch/lib/libiomp5.so", "/v/my libs/libomp.so.5", "/usr/lib/libgompx.so", "/usr/lib/libc.so.6"]
        )
    )  # fmt: skip
    files = root(**{"proc/self/maps": rows + "7f-8f rw-p 0 00:00 0 \n"})
    assert [path.rpartition("/")[2] for path in machine.openmp_libraries(files)] == [
        "libgomp.so.1.0.0", "libgomp-98df74fd.so.1.0.0", "libiomp5.so", "libomp.so.5",
    ]  # fmt: skip
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert "OMP_WAIT_POLICY=passive" in doctor.openmp(files).change
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert doctor.openmp(files).change == ""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_this_process_has_an_openmp_library():
    assert len(machine.openmp_libraries()) >= 1


def test_a_spin_count_of_the_environment_is_to_be_changed():
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | {"GOMP_SPINCOUNT": "infinite"}
    code = "from oxillama.cli.doctor import openmp; print(openmp().change)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("unset GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("stat", "part"),
    [
        ("usage_usec 5\nnr_periods 200\nnr_throttled 50\nthrottled_usec 1\n", 0.25),
        ("nr_periods 0\nnr_throttled 0\n", 0.0),
        ("nr_periods many\nnr_throttled 1\n", 0.0),
        ("usage_usec 5\n", 0.0),
    ],
)
def test_throttled_periods(root, stat, part):
    files = root(**{"sys/fs/cgroup/cpu.stat": stat})
    assert throttled(files) == part
    assert bool(doctor.threads(files).change) == (part > 0.1)


def test_a_group_above_may_be_the_one_that_is_stopped(root):
    files = root(
        **{
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.stat": "nr_periods 10\nnr_throttled 4\n",
            "sys/fs/cgroup/a/b/cpu.stat": "nr_periods 10\nnr_throttled 1\n",
        }
    )
    assert throttled(files) == 0.4


def test_a_variable_that_is_no_number_is_to_be_changed(root, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "lots")
    assert doctor.threads(root()).change == "set OMP_NUM_THREADS to a whole number from 1, or unset it"


@pytest.mark.parametrize(("text", "change"), [("0.20 1 1 1/9 9\n", ""), ("", ""), ("x\n", "")])
def test_load_of_an_idle_machine(root, text, change):
    assert doctor.load(root(**{"proc/loadavg": text})).change == change


def test_load_leaves_fewer_threads(root, monkeypatch):
    files = root(**{"proc/loadavg": "3.10 1 1 1/9 9\n", "sys/devices/system/cpu/online": "0-3\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert doctor.load(files).change.startswith("give --threads 2 while other programs run")


def test_load_is_of_hardware_threads(root, monkeypatch):
    cpus = "sys/devices/system/cpu"
    siblings = {f"{cpus}/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}\n" for i in range(8)}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    for busy, threads in ((0.9, 0), (2.2, 3), (4.0, 2), (7.9, 2)):
        files = root(**{"proc/loadavg": f"{busy} 1 1 1/9 9\n", f"{cpus}/online": "0-7\n", **siblings})
        change = doctor.load(files).change
        assert change.startswith(f"give --threads {threads} ") if threads else change == ""


@pytest.mark.parametrize(
    ("spins", "told"),
    [("GOMP_SPINCOUNT=0", False), ("GOMP_SPINCOUNT=1000", False), ("GOMP_SPINCOUNT=1001", True),
     ("GOMP_SPINCOUNT=infinity", True), ("OMP_WAIT_POLICY=PASSIVE", False), ("OMP_WAIT_POLICY=active", True),
     ("1000", False), ("0", False), ("KMP_BLOCKTIME=0", False), ("KMP_BLOCKTIME=1", True),
     ("KMP_BLOCKTIME=infinite", True)],
)  # fmt: skip
def test_spins_that_are_long(root, monkeypatch, spins, told):
    monkeypatch.setattr(ox.kernels, "config", lambda: {"idle_spins": spins})
    change = doctor.openmp(root(**{"proc/self/maps": ""})).change
    assert change.startswith(f"unset {spins.partition('=')[0]}, ") == told
    assert bool(change) == told


@pytest.mark.parametrize(
    ("text", "mode"),
    [("always [madvise] never\n", "madvise"), ("always madvise [never]\n", "never"), ("", None)],
)
def test_huge_pages(root, text, mode):
    files = root(**{"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert machine.huge_pages(files) == mode
    assert bool(doctor.huge_pages(files).change) == (mode == "never")


@pytest.mark.parametrize(
    ("available", "stalled", "word"),
    [(8 << 20, 0, ""), (8 << 20, 30, "--offload, or a smaller model"), (1000, 0, "end other programs")],
)
def test_memory(root, available, stalled, word):
    files = root(
        **{
            "proc/meminfo": f"MemTotal: {16 << 20} kB\nMemAvailable: {available} kB\n",
            "proc/pressure/memory": f"some avg10={stalled}.00 avg60=0.00 avg300=0.00 total=0\n",
        }
    )
    change = doctor.memory(files).change
    assert word in change
    assert bool(change) == bool(word)


def test_limits_that_are_low_have_a_remedy():
    found = doctor.resource_limits(
        [Limit("RLIMIT_AS", 1 << 30, None), Limit("RLIMIT_NOFILE", 64, 128), Limit("RLIMIT_FSIZE", None, None)]
    )
    ulimit, raised = found.change.split("; ")
    assert ulimit == "ulimit -S -v hard"
    assert "RLIMIT_NOFILE's hard limit" in raised
    assert "LimitNOFILE=" in raised
    assert "RLIMIT_AS is 1,073,741,824 (address space" in found.said
    assert doctor.resource_limits([Limit("RLIMIT_FSIZE", None, None)]).change == ""
    assert {limit.name for limit in machine.limits()} <= doctor.HARMLESS.keys()


@pytest.mark.parametrize(
    ("sizes", "n_bytes"), [({"0": "32K", "2": "2048K", "3": "36M"}, 36 << 20), ({"0": "big"}, 0), ({}, 0)]
)
def test_last_cache(root, sizes, n_bytes):
    files = root(**{f"sys/devices/system/cpu/cpu0/cache/index{i}/size": f"{size}\n" for i, size in sizes.items()})
    assert machine.last_cache_bytes(files) == n_bytes


def test_bandwidth_is_of_bytes_that_were_read(root, monkeypatch):
    monkeypatch.setattr(machine, "LEAST_BYTES", 4 << 20)
    found = machine.read_speed(0.02, 2, None, root())
    assert (found.n_bytes, found.threads) == (4 << 20, 2)
    assert found.one > 0
    assert found.all > 0
    assert machine.read_speed(0.02, 2, 15 << 20, root()) is None  # would take more than a quarter
    assert (
        "too little memory"
        in doctor.bandwidth(0.02, root(**{"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 9 kB\n"})).said
    )
