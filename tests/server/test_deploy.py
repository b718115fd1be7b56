"""Files for containers and supervisors: their commands are ours, and their programs accept them."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from oxillama.cli.arguments import make_parser
from oxillama.server import ServerConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "oxillama" / "server" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
UNIT = DEPLOY / "oxillama.service"


def unit():
    parser = configparser.RawConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


def test_the_command_of_the_unit():
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert program.endswith("/oxillama")
    args = make_parser().parse_args(words)
    assert args.server_api_key_file.startswith("${CREDENTIALS_DIRECTORY}/")
    assert int(unit()["Service"]["TimeoutStopSec"]) > ServerConfig().drain_timeout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_reads_the_unit(tmp_path):
    text = re.sub(r"/opt/oxillama/bin/oxillama", "/bin/true", UNIT.read_text())
    (tmp_path / "oxillama.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "oxillama.service")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def instructions():
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def test_the_instructions_of_the_image():
    known = ["FROM", "RUN", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"]
    assert {name for name, _ in instructions()} <= set(known)
    last = dict(instructions())
    program, *words = json.loads(last["ENTRYPOINT"])
    args = make_parser().parse_args(words)
    assert program == "oxillama"
    assert (args.server_host, args.server_api_key_file) == ("0.0.0.0", "/run/secrets/keys")
    assert int(last["EXPOSE"]) == ServerConfig().port
    assert int(last["USER"]) > 0
    python, flag, source = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    assert (python, flag) == ("python", "-c")
    assert f":{ServerConfig().port}/health" in source
    compile(source, "HEALTHCHECK", "exec")


def test_the_extras_of_the_image_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\[([\w-]+)\]\"", DOCKERFILE)) <= set(extras)
