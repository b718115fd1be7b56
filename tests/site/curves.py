"""Growth curves as SVG, of what asv_benchmarks/growth.py recorded: python -m tests.site.curves FOLDER writes files."""

import json
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["GROWTH", "curve", "curves", "growth"]

GROWTH = Path(__file__).parents[2] / "asv_benchmarks/growth.json"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, KEY = 340, 216, 48, 26, 28, 40, 18
MOST_LABELS = 8  # of an axis
# They read on white and on dark pages, and by their dashes without colours.
STYLES = (("#2f8f83", ""), ("#c2703d", "6 3"), ("#7a6fc0", "2 3"), ("#8a8a8a", "8 3 2 3"))
STEPS = (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10, 20, 25, 50, 100)


def growth() -> dict[str, Any]:
    """The recorded curves by name."""
    found: dict[str, Any] = json.loads(GROWTH.read_text())["curves"]
    return found


def ticks(top: float) -> list[float]:
    """Three to six round values from 0 on, the last one at `top` or above."""
    step = next((s for s in STEPS if top / s <= 5), top / 5)
    n = max(1, -int(-(top / step - 1e-9) // 1))
    return [step * i for i in range(n + 1)]


def short(x: float) -> str:
    """A number of an axis: 32768 is 32k."""
    return f"{x / 1024:g}k" if x >= 1024 and x % 1024 == 0 else f"{x:g}"


def curve(
    lines: dict[str, list[list[float]]], x_name: str, y_name: str, label: str, named: Callable[[float], str] = short
) -> str:
    """Lines of points [x, y] over the values of x that any of them has, which stand at equal distances.

    label: the whole picture in words, for readers who don't see it. named: the text of a value of x.
    """
    if len(lines) > len(STYLES):
        raise ValueError(f"a picture has room for {len(STYLES)} lines")
    places = sorted({x for points in lines.values() for x, _ in points})
    levels = ticks(max(y for points in lines.values() for _, y in points))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across = places.index(x) / max(1, len(places) - 1) * width
        return round(LEFT + across, 1), round(TOP + height * (1 - y / levels[-1]), 1)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + KEY * len(lines)}" role="img" aria-label="{escape(label)}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="inherit" font-size="12" fill="currentColor">'
    ]
    parts.append(f'<text x="{LEFT}" y="{TOP - 14}" opacity=".7">{escape(y_name)}</text>')
    for level in levels:
        _, y = at(places[0], level)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" opacity=".2"/>',
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{level:g}×</text>',
        ]
    for place in places[:: len(places) // MOST_LABELS + 1]:
        x, y = at(place, 0)
        parts.append(f'<text x="{x}" y="{y + 16}" text-anchor="middle">{escape(named(place))}</text>')
    parts.append(
        f'<text x="{LEFT + width / 2}" y="{HEIGHT - 6}" text-anchor="middle" opacity=".7">{escape(x_name)}</text>'
    )
    for i, (name, points) in enumerate(lines.items()):
        parts += _line([at(x, y) for x, y in points], escape(name), i)
    return "".join(parts) + "</svg>"


def _line(points: list[tuple[float, float]], name: str, i: int) -> list[str]:
    """A line with its points, and its entry in the key."""
    colour, dashes = STYLES[i]
    stroke = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
    y = HEIGHT + KEY * i + 8
    return [
        f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" {stroke}/>',
        *(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in points),
        f'<path d="M{LEFT} {y}h24" {stroke}/>',
        f'<text x="{LEFT + 30}" y="{y + 4}">{name}</text>',
    ]


def picture(found: dict[str, Any]) -> str:
    """One recorded curve with its caption."""
    said = "; ".join(
        f"{name}: {', '.join(f'{y:g} times at {short(x)}' for x, y in points)}"
        for name, points in found["lines"].items()
    )
    chart = curve(found["lines"], found["x"], found["y"], f"{found['title']}, {found['y']} by {found['x']}: {said}")
    return (
        f"{chart}<figcaption><strong>{escape(found['title'])}</strong><br/>"
        f"{escape(found['machine'])}, {found['recorded']}</figcaption>"
    )


def curves() -> str:
    """All curves as HTML for a page."""
    figures = "".join(f"<figure>{picture(found)}</figure>" for found in growth().values())
    return (
        f'<div class="pictures">{figures}</div>\n\n'
        "How speed changes with what it depends on, as ratios to the first point of each line.\n"
    )


def main() -> None:
    for name, found in growth().items():
        chart, _, _ = picture(found).partition("<figcaption>")
        (Path(sys.argv[1]) / f"{name}.svg").write_text(chart.replace("<svg ", '<svg color="#333" '))


if __name__ == "__main__":
    main()
