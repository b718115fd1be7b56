"""What `serve_app` refuses, before anything is started and without Ray."""

import sys

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.ray import serve_app


@pytest.mark.parametrize(("settings", "said"), [
    ({"num_replicas": 0}, "num_replicas must be"),
    ({"num_replicas": "many"}, "num_replicas must be"),
    ({"num_cpus": 0}, "num_cpus must be"),
    ({"num_fronts": 0}, "num_fronts must be"),
    ({"routing": "hash"}, "routing must be"),
    ({"context_size": 0}, "context_size must be"),
    ({"model": b"GGUF"}, "model must be a path that all nodes have"),
])  # fmt: skip
def test_wrong_settings_are_named(settings, said):
    with pytest.raises(ox.ConfigError, match=said):
        serve_app(**settings)


def test_unknown_settings_are_named():
    with pytest.raises(TypeError, match=r"contxt_size.*context_size"):
        serve_app(contxt_size=100)


def test_a_file_that_is_not_there_is_missed_at_once(tmp_path):
    with pytest.raises(ox.ModelNotFoundError, match=r"none\.gguf: there is no such file"):
        serve_app(tmp_path / "none.gguf")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"oxillama\.ray needs ray.*pip install '\.\[ray\]'"):
        serve_app()


@pytest.fixture
def deployments():
    """Makes the options of (replicas, front)."""
    pytest.importorskip("ray.serve")

    def make(*args, **settings):
        app = serve_app(*args, **settings)
        front = app._bound_deployment
        return front.init_args[0]._bound_deployment, front

    return make


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_limits_of_the_server_are_those_of_ray_serve(deployments):
    server = {"max_running": 7, "max_queue": 9, "max_connections": 11, "drain_timeout": 5.0}
    replicas, front = deployments(shipped_model(), num_replicas=3, num_cpus=2.5, server=server, num_fronts=2)
    assert (replicas.num_replicas, replicas.max_ongoing_requests, replicas.max_queued_requests) == (3, 7, 9)
    assert replicas.ray_actor_options["num_cpus"] == 2.5
    assert replicas.ray_actor_options["runtime_env"] == {"env_vars": {"OMP_NUM_THREADS": "2"}}
    assert (front.num_replicas, front.max_ongoing_requests) == (2, 11)
    assert front.ray_actor_options["num_cpus"] == 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_paths_of_replicas_are_absolute(deployments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replicas, _ = deployments(shipped_model(), packed="a.packed", tokenizer_path="t.gguf")
    config = replicas.init_args[0]
    assert (config.packed, config.tokenizer_path) == (str(tmp_path / "a.packed"), str(tmp_path / "t.gguf"))
    assert deployments(packed=True)[0].init_args[0].packed is True


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_options_of_the_deployment_count_before_ours(deployments):
    scaling = {"min_replicas": 1, "max_replicas": 4}
    options = {"autoscaling_config": scaling, "num_replicas": "auto", "max_ongoing_requests": 3}
    replicas, _ = deployments(num_replicas="auto", replica_options=options)
    assert replicas.max_ongoing_requests == 3
    with pytest.raises(ox.ConfigError, match="routing must be 'prefix', 'load' or a RequestRouterConfig, not int"):
        serve_app(routing=7)
