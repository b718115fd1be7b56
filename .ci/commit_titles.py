"""Checks titles of commits, which have at most 72 characters: python .ci/commit_titles.py FILE, or FROM..TO

A file is the message that git is about to commit, as for the hook that .pre-commit-config.yaml has for it; a range are
commits of a branch, as the workflow of pull requests gives it. Merges are left out, and commits to be squashed.
"""

import subprocess
import sys
from pathlib import Path

MOST = 72
GIT_WRITES = ("Merge ", "fixup! ", "squash! ", "amend! ")


def title_of(message: str) -> str:
    """First line of a message that is neither blank nor one of git's own remarks; "" without one."""
    lines = (line.strip() for line in message.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def fault(title: str) -> str:
    """Sentence on a title that is too long; "" for one that isn't."""
    if title.startswith(GIT_WRITES) or len(title) <= MOST:
        return ""
    return f"the title has {len(title)} characters, and may have {MOST}: {title}"


def titles(given: str) -> list[str]:
    """Title of the message in a file, or those of the commits of a range."""
    if ".." not in given or Path(given).is_file():
        return [title_of(Path(given).read_text(encoding="utf-8"))]
    command = ["git", "log", "--no-merges", "--format=%s", given]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    found = [said for title in titles(sys.argv[1]) if (said := fault(title))]
    sys.exit("\n".join(found) or 0)
