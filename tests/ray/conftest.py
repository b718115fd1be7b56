"""Two nodes of Ray on this machine, and what is served on them."""

import os
import time

import pytest

# Read by every process of the cluster when it starts: no token in the home folder, no report of its use.
SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}


@pytest.fixture(scope="session")
def ray():
    """Ray, connected to two nodes of two CPUs each."""
    module = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    os.environ.pop("OMP_NUM_THREADS", None)
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}, shutdown_at_exit=True
    )
    try:
        cluster.add_node(num_cpus=2)
        module.init(cluster.address, logging_level="warning", log_to_driver=False)
        while sum(node["Alive"] for node in module.nodes()) < 2:
            time.sleep(0.1)
        yield module
        module.shutdown()
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
