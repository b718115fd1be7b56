"""Two nodes of Ray on this machine, and the processes of its workers."""

import contextlib
import os
import re
import socket
import time
from pathlib import Path

import pytest

# Read by every process of the cluster when it starts: no token in the home folder, no report of its use.
SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}


@contextlib.contextmanager
def two_nodes():
    """Ray, connected to two nodes of two CPUs each. Skips the test if it is not installed."""
    ray = pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    os.environ.pop("OMP_NUM_THREADS", None)
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(cluster.address, logging_level="warning", log_to_driver=False)
        while sum(node["Alive"] for node in ray.nodes()) < 2:
            time.sleep(0.1)
        yield ray
        ray.shutdown()
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def serving():
    """Ray Serve, and the free port on which it listens."""
    serve = pytest.importorskip("ray.serve")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"port": port})
    yield serve, port
    serve.shutdown()


def workers(title):
    """Ids of the processes below this one whose titles, which Ray gives them, hold this."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int(re.search(r"\nPPid:\t(\d+)", (folder / "status").read_text())[1])
            if title.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))

    def is_ours(pid):
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return [pid for pid in found if is_ours(pid)]
