"""Bar charts of the recorded measurements, as SVG: `python -m tests.site.charts FOLDER` writes them to files."""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["MEASURED", "bars", "measured", "pictures"]

MEASURED = Path(__file__).parents[2] / "asv_benchmarks/measured.json"
KINDS = ("prefill", "decode", "batch")
WIDTH, LEFT, RIGHT, TOP, ROW = 340, 66, 42, 34, 24
# Reads on white and on dark pages: text has the colour of the page's text.
BAR, LINE = "#2f8f83", "currentColor"


def measured() -> dict[str, Any]:
    """The recorded ratios, with date and machine."""
    found: dict[str, Any] = json.loads(MEASURED.read_text())
    return found


def bars(ratios: dict[str, float], top: float, label: str) -> str:
    """A bar for each ratio, from 0 to `top`, with a line at 1, which is llama.cpp.

    label: the whole picture in words, for readers who don't see it.
    """
    height = TOP + ROW * len(ratios) + 6
    scale = (WIDTH - LEFT - RIGHT) / top
    one = LEFT + scale
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="inherit" font-size="12" fill="currentColor">',
        f'<text x="{one:.1f}" y="{TOP - 14}" text-anchor="middle" opacity=".7">llama.cpp</text>',
    ]
    for i, (name, ratio) in enumerate(ratios.items()):
        y = TOP + ROW * i
        length = ratio * scale
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="{ROW - 7}" rx="2" fill="{BAR}"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 14}">{ratio:g}×</text>',
        ]
    parts.append(
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 8}" y2="{height - 4}" stroke="{LINE}" '
        'stroke-dasharray="3 3" opacity=".7"/></svg>'
    )
    return "".join(parts)


def pictures() -> str:
    """The three pictures as HTML for a page, with what was measured, where and when below each."""
    numbers = measured()
    top = max(ratio for kind in KINDS for ratio in numbers[kind]["ratios"].values())
    figures = "".join(f"<figure>{picture(numbers, kind, top)}</figure>" for kind in KINDS)
    head = (
        f"How many times as fast as llama.cpp ({numbers['peer']}): {numbers['model']}, {numbers['threads']} threads, "
        f"{numbers['machine']}, medians of three. Longer is better."
    )
    return f'<div class="pictures">{figures}</div>\n\n{head}\n'


def picture(numbers: dict[str, Any], kind: str, top: float) -> str:
    """One chart with its caption."""
    found = numbers[kind]
    said = ", ".join(f"{name} {ratio:g} times" for name, ratio in found["ratios"].items())
    chart = bars(found["ratios"], top, f"{found['title']}, compared with llama.cpp: {said}")
    return f"{chart}<figcaption><strong>{escape(found['title'])}</strong><br/>{found['recorded']}</figcaption>"


def main() -> None:
    folder = Path(sys.argv[1])
    numbers = measured()
    for kind in KINDS:
        ratios = numbers[kind]["ratios"]
        chart = bars(ratios, max(ratios.values()), numbers[kind]["title"])
        (folder / f"{kind}.svg").write_text(chart.replace("<svg ", '<svg color="#333" '))


if __name__ == "__main__":
    main()
