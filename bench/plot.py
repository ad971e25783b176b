"""The results as a picture: a turn's time over a long session, and how many turns a second. SVG, written by hand."""

from collections.abc import Iterator, Sequence
from statistics import median
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 340
PANEL = 400  # width of each half's drawing
TOP, BOTTOM = 60, 280
BLUE, GREY, RED = "#2563eb", "#9ca3af", "#dc2626"
POINTS = 50


def picture(
    turns: Sequence[float], bare: Sequence[float], bars: Sequence[tuple[str, float]], *, goal: float, caption: str
) -> str:
    """`turns` and `bare` are milliseconds in the order they were measured, `goal` a line across the bars."""
    body = [*_lines(turns, bare, left=50), *_bars(bars, goal, left=530)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        '<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join([*body, _text(50, HEIGHT - 12, caption, GREY)])
        + "\n</svg>\n"
    )


def _lines(turns: Sequence[float], bare: Sequence[float], *, left: int) -> Iterator[str]:
    series = [("a plain turn", _thinned(turns), BLUE), ("a bare call of the same window", _thinned(bare), GREY)]
    top = max(max(values) for _, values, _ in series) * 1.1
    yield _text(left, 30, f"Milliseconds over {len(turns):,} turns of one session", weight="bold")
    yield from _scale(left, top)
    for index, (name, values, colour) in enumerate(series):
        step = PANEL / (len(values) - 1)
        points = " ".join(f"{left + step * at:.1f},{_y(value, top):.1f}" for at, value in enumerate(values))
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield _text(left + 8 + index * 110, BOTTOM + 22, name, colour)


def _bars(bars: Sequence[tuple[str, float]], goal: float, *, left: int) -> Iterator[str]:
    top = max(goal, *(value for _, value in bars)) * 1.1
    yield _text(left, 30, "Plain turns a second", weight="bold")
    yield from _scale(left, top)
    place = PANEL / len(bars)
    for index, (name, value) in enumerate(bars):
        x, y = left + place * index + 8, _y(value, top)
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{place - 16:.1f}" height="{BOTTOM - y:.1f}" fill="{BLUE}"/>'
        yield _text(x, y - 5, f"{value:.0f}")
        for line, words in enumerate(name.split(", ")):
            yield _text(x, BOTTOM + 16 + 14 * line, words, size=10)
    y = _y(goal, top)
    yield f'<path d="M{left} {y:.1f}h{PANEL}" stroke="{RED}" stroke-dasharray="4"/>'
    yield _text(left + PANEL - 60, y - 5, f"target {goal:.0f}", RED)


def _scale(left: int, top: float) -> Iterator[str]:
    for part in range(5):
        value = top * part / 4
        yield f'<path d="M{left} {_y(value, top):.1f}h{PANEL}" stroke="#e5e7eb"/>'
        yield _text(left - 6, _y(value, top) + 4, f"{value:.0f}", GREY, anchor="end")


def _thinned(values: Sequence[float]) -> list[float]:
    """Medians of neighbours, so that single hiccups do not hide the course."""
    size = max(len(values) // POINTS, 1)
    return [median(values[at : at + size]) for at in range(0, len(values), size)]


def _y(value: float, top: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value / top


def _text(
    x: float,
    y: float,
    words: str,
    colour: str = "#111827",
    *,
    weight: str = "normal",
    anchor: str = "start",
    size: int = 12,
) -> str:
    style = f'fill="{colour}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'
