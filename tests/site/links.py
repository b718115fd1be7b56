"""Links of a built site: each leads to a file and a heading that are there, and no page loads from another host."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["faults"]

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
SHOWN_ONLY = {"canonical", "next", "prev", "alternate"}  # relations of <link> that load nothing


class Page(HTMLParser):
    """Links, loaded resources and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADS and LOADS[tag] in values and values.get("rel", "") not in SHOWN_ONLY:
            self.loads.append(values[LOADS[tag]])


def faults(folder: Path) -> list[str]:
    """What is wrong with the pages below a folder."""
    paths = sorted(folder.rglob("*.html"))
    pages = {path.resolve(): Page(path.read_text()) for path in paths}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        found += [f"{name} loads {url} from another host" for url in page.loads if _is_remote(url)]
        local = [url for url in page.links + page.loads if not urlsplit(url).scheme and not _is_remote(url)]
        found += [
            f"{name} links to {url}, which is not there" for url in local if not _is_there(path, url, pages, folder)
        ]
    return found


def _is_remote(url: str) -> bool:
    return url.startswith("//") or urlsplit(url).scheme in ("http", "https")


def _is_there(path: Path, url: str, pages: dict[Path, Page], folder: Path) -> bool:
    parts = urlsplit(url)
    base = folder.resolve() if parts.path.startswith("/") else path.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].ids
