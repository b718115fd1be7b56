"""Compose, Kubernetes, nginx and Grafana: what they name exists, and agrees with the server's settings."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oxillama.cli.arguments import make_parser
from oxillama.metrics import FAMILIES
from oxillama.server import ServerConfig
from oxillama.server.metrics import ServerMetrics
from oxillama.server.routes import ROUTES

DEPLOY = Path(__file__).parents[2] / "oxillama/server/deploy"
PATHS = {route.path for route in ROUTES if route.method == "GET"}
SUFFIXES = ("", "_bucket", "_sum", "_count")


def seconds(text):
    return float(re.fullmatch(r"(\d+)s?", str(text))[1])


def settings(words):
    return make_parser().parse_args(["serve", *words])


def documents(name):
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_service_of_compose():
    (document,) = documents("compose.yaml")
    service = document["services"]["oxillama"]
    args = settings(service["command"])
    assert args.server_log_format == "json"
    assert service["ports"] == [f"127.0.0.1:{ServerConfig().port}:{ServerConfig().port}"]
    assert seconds(service["stop_grace_period"]) > ServerConfig().drain_timeout
    assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    assert service["secrets"] == list(document["secrets"]) == ["keys"]  # where the image looks: /run/secrets/keys
    context = (DEPLOY / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).read_text() == (DEPLOY / "Dockerfile").read_text()
    assert any(volume.split(":")[1] in service["command"][1] for volume in service["volumes"])


def test_the_deployment_of_kubernetes():
    deployment, service, budget = documents("kubernetes.yaml")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] > ServerConfig().drain_timeout
    assert "lifecycle" not in container
    args = settings(container["args"])
    assert args.server_public_metrics
    assert container["ports"][0]["containerPort"] == ServerConfig().port
    probes = [container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    assert probes == ["/health", "/ready"]
    assert PATHS.issuperset(probes)
    assert spec["securityContext"]["runAsUser"] == 10001
    assert "useradd --system --uid 10001" in (DEPLOY / "Dockerfile").read_text()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in spec["volumes"]} == set(mounts)
    assert mounts["keys"] == "/run/secrets"
    assert args.model.startswith(mounts["models"])
    assert container["resources"]["requests"] == container["resources"]["limits"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"] == labels
    assert labels == deployment["spec"]["selector"]["matchLabels"]


def test_the_proxy_passes_streams_on():
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    found = dict(re.findall(r"^\s*(proxy_buffering|proxy_read_timeout|client_max_body_size) (.*);", text, re.MULTILINE))
    assert found["proxy_buffering"] == "off"
    assert seconds(found["proxy_read_timeout"]) > ServerConfig().request_timeout
    assert int(found["client_max_body_size"].rstrip("m")) << 20 > ServerConfig().max_body


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")
def test_nginx_reads_its_file(tmp_path):
    text = f"events {{}}\npid {tmp_path}/pid;\nhttp {{ include {DEPLOY}/nginx.conf; }}\n"
    (tmp_path / "main.conf").write_text(text)
    command = ["nginx", "-t", "-q", "-c", str(tmp_path / "main.conf"), "-p", str(tmp_path), "-e", "stderr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def board():
    return json.loads((DEPLOY / "grafana.json").read_text())


def metrics():
    """Names of all samples of /metrics."""
    server = ServerMetrics()
    server.ended("/health", "GET", 200, 0.1)
    server.refused("x")
    server.used("x", "prompt", 1)
    names = set(re.findall(r"^# TYPE (\S+)", server.text(False), re.MULTILINE)) | {family.name for family in FAMILIES}
    return {name + suffix for name in names for suffix in SUFFIXES}


def test_the_board_asks_for_metrics_that_there_are():
    texts = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    texts += [one["query"]["query"] for one in board()["templating"]["list"] if one["type"] == "query"]
    named = [name for text in texts for name in re.findall(r"\boxillama_\w+", text)]
    assert len(set(named)) > 15
    assert [name for name in named if name not in metrics()] == []


def test_labels_of_the_board_are_those_of_the_server():
    kinds = {family.name: family.kind for family in FAMILIES}
    for panel in board()["panels"]:
        for target in panel["targets"]:
            (name,) = set(re.findall(r"\boxillama_\w+?(?=_bucket|\{)", target["expr"]))
            assert ("model=~" in target["expr"]) == (name in kinds)
            if name.endswith("_total") or "_bucket" in target["expr"]:
                assert "rate(" in target["expr"]
            else:
                assert "rate(" not in target["expr"]


def test_panels_of_the_board_have_places_of_their_own():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board()["panels"]]
    assert len(set(places)) == len(places) >= 10
    assert len({panel["id"] for panel in board()["panels"]}) == len(places)


@pytest.mark.parametrize("page", ["server/MIGRATING.md", "server/deploy/README.md", "SECURITY.md", "server/README.md"])
def test_flags_of_the_manual_exist(page):
    """In tables of two programs, those of the second column."""
    text = (DEPLOY.parents[1] / page).read_text()
    if "MIGRATING" in page:
        text = "\n".join(line.split(" | ", 1)[1] for line in text.splitlines() if line.startswith("| "))
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub(r"^(?:docker|kubectl) .*", "", text, flags=re.MULTILINE)))
    assert named
    assert sorted(named - flags()) == []


def flags():
    parser = make_parser()
    commands = next(a.choices for a in parser._actions if isinstance(getattr(a, "choices", None), dict))
    return {option for action in commands["serve"]._actions for option in action.option_strings}


def test_keys_and_models_beside_the_files_get_nowhere():
    """Neither into a commit, nor into an image."""
    (document,) = documents("compose.yaml")
    beside = [document["secrets"]["keys"]["file"], document["services"]["oxillama"]["volumes"][0].split(":")[0]]
    names = [(DEPLOY / path).name for path in beside]
    assert names == ["keys", "models"]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    root = DEPLOY.parents[2]
    kept = [line.rstrip("/") for line in (root / ".gitignore").read_text().splitlines()]
    for name in names:
        assert f"**/deploy/{name}" in ignored
        assert f"{DEPLOY.relative_to(root)}/{name}" in kept
    assert {".git", "**/.venv", "build", "dist"}.issubset(ignored)
