"""Builds the site: python -m tests.site [FOLDER] [--perf FOLDER]

The page of speed by commit is drawn from asv_benchmarks/history.json, or from a folder that `asv publish` wrote.

Needs the extra "docs", and no network. A warning of the build, a link that leads nowhere and anything that a page would
load from another host end it with status 1.
"""

import argparse
import importlib.util
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.site.links import faults
from tests.site.pages import ROOT, navigation, stage
from tests.site.perf import PAGE, history_of, kept_history, speed_page

__all__ = ["build"]


def build(folder: Path, history: dict[str, Any] | None = None) -> list[str]:
    """Builds the site into a folder, and returns what is wrong with it. history: what asv recorded of commits."""
    # The theme warns of MkDocs 2, which knows no plugins; the extra "docs" asks for an older one.
    os.environ.setdefault("DISABLE_MKDOCS_2_WARNING", "true")
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    with tempfile.TemporaryDirectory() as name:
        pages = stage(Path(name))
        if history is not None:
            page = Path(name) / PAGE
            page.parent.mkdir()
            page.write_text(speed_page(history))
        settings = Path(__file__).with_name("mkdocs.yml")
        config = load_config(
            str(settings),
            docs_dir=name,
            site_dir=str(folder),
            nav=navigation(pages, history is not None),
            strict=True,
        )
        config.plugins.on_startup(command="build", dirty=False)
        try:
            build_site(config)
        finally:
            config.plugins.on_shutdown()
    return faults(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.site", description="builds the documentation")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build/site")
    parser.add_argument("--perf", type=Path, help="draw speed by commit from what `asv publish` wrote here")
    a = parser.parse_args(arguments)
    try:
        history = history_of(a.perf) if a.perf else kept_history()
    except ValueError as error:
        parser.error(str(error))
    if importlib.util.find_spec("mkdocs") is None:
        sys.exit("mkdocs is not installed: pip install -e '.[docs]'")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if found := build(a.folder.resolve(), history):
        sys.exit("\n".join(found))
    print(f"{a.folder / 'index.html'}")


if __name__ == "__main__":
    main()
