"""Notebook displays: results as small HTML tables, log-probabilities as a picture, and text that grows in place."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from oxillama._util.lazy import LateModule

if TYPE_CHECKING:
    import html
else:
    html = LateModule("html")

__all__ = ["LiveText", "Piece", "html_table", "html_text", "probability_bars"]

# (which completion, reasoning, text) of a chunk.
Piece = tuple[int, str, str]

INTERVAL = 0.05  # seconds between two updates of a notebook: each sends the whole text
MOST_BARS = 256
BAR, HEIGHT = 7, 40  # pixels
_WRAPPED = "white-space:pre-wrap;text-align:left;max-width:60em;overflow-wrap:anywhere"


def html_text(text: str, style: str = "") -> str:
    """A text as it is, escaped, with its line breaks."""
    return f'<div style="{_WRAPPED};{style}">{html.escape(text)}</div>'


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values; the values are HTML already."""
    cells = (
        f'<tr><th style="text-align:left;vertical-align:top">{html.escape(name)}</th>'
        f'<td style="text-align:left">{value}</td></tr>'
        for name, value in rows
    )
    return f"<table>{''.join(cells)}</table>"


def probability_bars(tokens: Sequence[tuple[str, float]]) -> str:
    """An SVG with a bar for each (text, log-probability): as high as the token was probable, its text when pointed at.

    Of more than MOST_BARS tokens, the first.
    """
    shown = tokens[:MOST_BARS]
    bars = []
    for i, (text, logprob) in enumerate(shown):
        probability = math.exp(min(logprob, 0.0))
        height = max(1.0, HEIGHT * probability)
        title = html.escape(f"{text!r}: {logprob:.3f}, {probability:.1%}")
        bars.append(
            f'<rect x="{BAR * i}" y="{HEIGHT - height:.1f}" width="{BAR - 1}" height="{height:.1f}">'
            f"<title>{title}</title></rect>"
        )
    left = f" and {len(tokens) - len(shown)} more" if len(tokens) > len(shown) else ""
    width = max(1, BAR * len(shown))
    return (
        f'<svg width="{width}" height="{HEIGHT}" role="img" aria-label="probabilities of {len(shown)} tokens" '
        f'fill="#2f8f83">{"".join(bars)}</svg>{left}'
    )


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Nothing is imported to find out."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())


class LiveText:
    """Texts of completions as they come: in a notebook one display that is updated, elsewhere standard output.

    On standard output the completion that begins first is written as it comes, and the others after it, each whole.
    """

    def __init__(self) -> None:
        self._texts: dict[int, tuple[str, str]] = {}  # reasoning and text of each completion
        self._update: Callable[[Any], None] | None = None
        self._due = 0.0
        if _in_notebook():
            display = sys.modules["IPython"].display
            self._html = display.HTML
            self._update = display.display(self._html(""), display_id=True).update

    def push(self, piece: Piece) -> None:
        """Adds what a chunk brought."""
        index, reasoning, text = piece
        before = self._texts.get(index, ("", ""))
        self._texts[index] = before[0] + reasoning, before[1] + text
        if self._update is None:
            if index == next(iter(self._texts)):
                self._print(reasoning, text, before)
        elif (now := time.monotonic()) >= self._due:
            self._show()
            self._due = now + INTERVAL

    def end(self) -> None:
        """Shows what is not shown yet."""
        if self._update is not None:
            self._show()
            return
        first = next(iter(self._texts), 0)
        for index in sorted(self._texts.keys() - {first}):
            print(file=sys.stdout)
            self._print(*self._texts[index], ("", ""))
        print(file=sys.stdout, flush=True)

    @staticmethod
    def _print(reasoning: str, text: str, before: tuple[str, str]) -> None:
        """Reasoning and the text after it stand on lines of their own."""
        between = "\n" if text and not before[1] and (reasoning or before[0]) else ""
        print(reasoning + between + text, end="", file=sys.stdout, flush=True)

    def _show(self) -> None:
        if self._update is None:
            return
        blocks = []
        for index in sorted(self._texts):
            reasoning, text = self._texts[index]
            thought = html_text(reasoning, "opacity:.6") if reasoning else ""
            blocks.append(thought + html_text(text))
        self._update(self._html("<hr/>".join(blocks)))
