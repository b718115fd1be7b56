"""Workflows of the repository, and the checks that they and the hooks of commits call."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(not CI.is_dir(), reason="a source package has no .ci")


def module(name):
    spec = importlib.util.spec_from_file_location(f"ci_{name}", CI / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def checked(*given, folder=ROOT):
    command = [sys.executable, CI / "commit_titles.py", *given]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("message", "is_right"),
    [
        ("x" * 72 + "\n", True),
        ("x" * 73, False),
        ("ä" * 72 + "\n\n" + "a body may be as wide as it likes " * 9, True),
        ("ä" * 73, False),
        (
            "# a remark of git's, which is no title, however long it is, as it is taken out of the message\n\nRight",
            True,
        ),
        ("\n\n" + "x" * 73, False),
        ("Merge branch 'a-name-that-is-long' into another-name-that-is-long-" + "x" * 72, True),
        ("fixup! " + "x" * 72, True),
        ("", True),  # git refuses it
    ],
)
def test_titles_have_72_characters(tmp_path, message, is_right):
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(message, encoding="utf-8")
    done = checked(path)
    assert (done.returncode == 0) == is_right
    assert ("and may have 72" in done.stderr) != is_right


def test_titles_of_a_range(tmp_path):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], check=True, capture_output=True, cwd=tmp_path)

    git("init", "-q")
    for title in ("y" * 99, "First", "x" * 80, "Third"):
        git("commit", "-q", "--allow-empty", "--no-verify", "-m", title)
    assert checked("HEAD~1..HEAD", folder=tmp_path).returncode == 0
    done = checked("HEAD~3..HEAD", folder=tmp_path)  # without the first, which was there before
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"the title has 80 characters, and may have 72: {'x' * 80}"]


def test_needs_of_extras_follow_extras():
    needs = module("needs").needs
    assert needs("dev")
    assert not [one for extra in ("dev", "tables", "workers") for one in needs(extra) if one.startswith("oxillama")]
    assert set(needs("data")) < set(needs("tables")) < set(needs("dev"))
    with pytest.raises(KeyError):
        needs("no such extra")


def test_commands_of_workflows_are_there():
    texts = {path.name: path.read_text() for path in WORKFLOWS}
    assert {"checks.yml", "nightly.yml", "wheels.yml"} <= texts.keys()
    named = {found for text in texts.values() for found in re.findall(r"(?<![\w*\"])\.ci/[\w.]+", text)}
    assert {".ci/run", ".ci/lint", ".ci/needs.py", ".ci/commit_titles.py"} <= named
    assert [name for name in named if not (ROOT / name).is_file()] == []
    tests = re.search(r"^python3 -m venv .*(python -m pytest.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    assert f"run: {tests} " in texts["checks.yml"]
    assert f"`{tests}` |" in (ROOT / "CONTRIBUTING.md").read_text()
    assert ".ci/run" not in "".join(line.partition("#")[0] for line in texts["checks.yml"].splitlines())


def test_workflows_are_yaml_with_jobs():
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
    for path in WORKFLOWS:
        found = yaml.safe_load(path.read_text())
        assert found["permissions"] == {"contents": "read"}
        for job in found["jobs"].values():
            assert job["runs-on"]
            assert all("run" in step or "uses" in step for step in job["steps"])


def test_hooks_look_at_titles():
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
    found = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert found["default_install_hook_types"] == ["pre-commit", "commit-msg"]
    hook = next(one for repo in found["repos"] for one in repo["hooks"] if one["id"] == "commit-title")
    assert hook["stages"] == ["commit-msg"]
    assert (ROOT / hook["entry"].split()[1]).is_file()
