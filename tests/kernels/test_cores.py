"""The default number of threads, on machines that folders of files describe."""

import logging
import os
import subprocess
import sys

import pytest

from oxillama.kernels import _cores, config
from oxillama.kernels._cores import default_num_threads, default_threads

V2 = "36 25 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct"


def machine(root, *, cpus=8, per_core=1, cgroup="0::/", mounts=(V2,), files=()):
    """A root folder with so many CPUs, of which `per_core` share a core, and files of cgroups."""
    written = {"sys/devices/system/cpu/online": f"0-{cpus - 1}\n" if cpus > 1 else "0\n"}
    for cpu in range(cpus):
        first = cpu - cpu % per_core
        written[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{first}-{first + per_core - 1}\n"
    written["proc/self/cgroup"] = cgroup + "\n"
    written["proc/self/mountinfo"] = "\n".join(["25 1 0:20 / / rw - ext4 /dev/root rw", *mounts]) + "\n"
    for name, text in {**written, **dict(files)}.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def found(root, env=(), cpus=None):
    return default_threads(root, dict(env), range(8) if cpus is None else cpus)


def test_without_a_limit_there_is_a_thread_for_each_core(tmp_path):
    assert str(found(machine(tmp_path))) == "8 of 8 cores: all of them"


def test_hardware_threads_of_one_core_count_once(tmp_path):
    root = machine(tmp_path, per_core=2)
    assert str(found(root)) == "4 of 4 cores: all of them"
    assert str(found(root, cpus={0, 1, 5})) == "2 of 4 cores: CPU affinity"


def test_affinity(tmp_path):
    assert str(found(machine(tmp_path), cpus={1, 6, 7})) == "3 of 8 cores: CPU affinity"


def test_a_process_without_proc_and_sys_counts_its_cpus(tmp_path):
    assert found(tmp_path, cpus={0}).n == 1
    assert 1 <= default_threads(tmp_path, {}).n <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("quota", "n", "percent"),
    [
        ("250000 100000", 2, 250), ("150000 100000", 1, 150), ("100000 100000", 1, 100), ("20000 100000", 1, 20),
        ("30000 10000", 3, 300),
    ],
)  # fmt: skip
def test_quota_of_version_2_is_rounded_down_and_never_to_none(tmp_path, quota, n, percent):
    root = machine(tmp_path, cgroup="0::/job", files={"sys/fs/cgroup/job/cpu.max": quota + "\n"})
    assert str(found(root)) == f"{n} of 8 cores: cgroup quota of {percent} % (/sys/fs/cgroup/job/cpu.max)"


@pytest.mark.parametrize("text", ["max 100000", "", "100000", "x 100000", "100000 0", "-1 100000", f"{'9' * 5000} 1"])
def test_what_is_no_quota_limits_nothing(tmp_path, text):
    root = machine(tmp_path, files={"sys/fs/cgroup/cpu.max": text})
    assert found(root).n == 8


def test_the_least_quota_of_all_ancestors_counts(tmp_path):
    files = {
        "sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/b/c/cpu.max": "500000 100000", "sys/fs/cgroup/other/cpu.max": "100000 100000",
    }  # fmt: skip
    root = machine(tmp_path, cgroup="0::/a/b/c", files=files)
    assert str(found(root)) == "3 of 8 cores: cgroup quota of 300 % (/sys/fs/cgroup/a/cpu.max)"


@pytest.mark.parametrize(("quota", "n"), [("350000", 3), ("-1", 8)])
def test_quota_of_version_1(tmp_path, quota, n):
    folder = "sys/fs/cgroup/cpu,cpuacct/batch"
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}
    root = machine(tmp_path, cgroup="4:memory:/else\n3:cpu,cpuacct:/batch\n0::/", mounts=(V2, V1), files=files)
    assert found(root).n == n


@pytest.mark.parametrize(
    ("cgroup", "mount"),
    [
        # A container that sees its own part of the hierarchy, and is told the path outside it.
        ("0::/docker/1a2b", "36 25 0:31 /docker/1a2b /sys/fs/cgroup rw - cgroup2 cgroup2 rw"),
        ("0::/../../other", V2),  # a group outside the namespace's root
        ("0::/elsewhere", "36 25 0:31 /docker/1a2b /sys/fs/cgroup rw - cgroup2 cgroup2 rw"),
    ],
)
def test_a_part_of_the_hierarchy_is_mounted(tmp_path, cgroup, mount):
    root = machine(tmp_path, cgroup=cgroup, mounts=(mount,), files={"sys/fs/cgroup/cpu.max": "200000 100000"})
    assert found(root).n == 2


def test_blanks_in_the_path_of_a_mount(tmp_path):
    mount = r"36 25 0:31 / /sys/fs/my\040groups rw shared:9 - cgroup2 none rw"
    root = machine(tmp_path, mounts=(mount,), files={"sys/fs/my groups/cpu.max": "200000 100000"})
    assert found(root).n == 2


@pytest.mark.parametrize(
    ("env", "n", "reason"),
    [
        ({"OMP_NUM_THREADS": "4"}, 4, "OMP_NUM_THREADS=4"),
        ({"OMP_NUM_THREADS": " 4 , 2 "}, 4, "OMP_NUM_THREADS=4 , 2"),
        ({"OMP_NUM_THREADS": "64"}, 8, "all of them"),
        ({"OMP_THREAD_LIMIT": "3"}, 3, "OMP_THREAD_LIMIT=3"),
        ({"OMP_NUM_THREADS": "4", "OMP_THREAD_LIMIT": "2"}, 2, "OMP_THREAD_LIMIT=2"),
        ({"OMP_NUM_THREADS": ""}, 8, "all of them"),
    ],
)  # fmt: skip
def test_variables_of_openmp(tmp_path, env, n, reason):
    assert str(found(machine(tmp_path), env)) == f"{n} of 8 cores: {reason}"


@pytest.mark.parametrize("value", ["0", "-2", "four", "2.5", "4;2", ",4", "٤", "1" * 30])
def test_a_variable_without_meaning_is_ignored_and_named(tmp_path, value):
    said = found(machine(tmp_path), {"OMP_NUM_THREADS": value})
    assert said.n == 8
    assert said.ignored == (f"OMP_NUM_THREADS={value!r}",)
    assert "is no number of threads and is ignored" in str(said)


def test_the_least_limit_counts_and_of_equal_ones_the_first(tmp_path):
    root = machine(tmp_path, files={"sys/fs/cgroup/cpu.max": "200000 100000"})
    assert "CPU affinity" in str(found(root, {"OMP_NUM_THREADS": "2"}, {0, 1}))
    assert "quota" in str(found(root, {"OMP_NUM_THREADS": "2"}))
    assert str(found(root, {"OMP_NUM_THREADS": "1"})) == "1 of 8 cores: OMP_NUM_THREADS=1"


def test_a_warning_names_the_variable(monkeypatch, caplog):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "many")
    with caplog.at_level(logging.WARNING, "oxillama"):
        assert 1 <= default_num_threads() <= (os.cpu_count() or 1)
    assert "OMP_THREAD_LIMIT='many'" in caplog.text


def test_show_config_tells_which_limit_decided(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = config()
    assert said["threads"] == 1
    assert said["threads_by"] == str(_cores.default_threads())


def test_an_engine_has_the_default_unless_it_is_given_a_number():
    code = (
        "import oxillama as ox\n"
        "for fields in ({}, {'num_threads': 3}):\n"
        "    with ox.load(**fields) as engine: print(engine.num_threads, engine.generate('The', max_tokens=8, seed=1))"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1,1", "OMP_THREAD_LIMIT": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    one, three = done.stdout.splitlines()
    assert one[0] == "1"
    assert three == "3" + one[1:]  # where OpenMP gives fewer threads than are asked for, no bit differs
