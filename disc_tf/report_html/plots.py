"""Plots as SVG: memory over the program, time by shape, kernels under the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from disc_tf.report_html.markup import Markup, bytes_text, number, short, tag

#: steps that have a tooltip of their own
_TOOLTIPS = 500


def memory(steps: Sequence[str], live: Sequence[int], arena: int | None) -> Markup:
    """Bytes in use at each step as an area, the size of the whole arena as a line."""
    width, height, left, bottom = 900, 190, 74, 24
    top = max([*live, arena or 0, 1])
    wide = (width - left - 8) / max(len(live), 1)

    def y(value: float) -> float:
        return 10 + (height - bottom - 10) * (1 - value / top)

    path = [f"M{left} {number(y(0))}"]
    for i, value in enumerate(live):
        path.append(f"L{number(left + i * wide)} {number(y(value))}H{number(left + (i + 1) * wide)}")
    path.append(f"V{number(y(0))}Z")
    parts = [tag("path", d="".join(path), class_="area")]
    for share in (0, 0.5, 1):
        parts.append(tag("line", x1=left, x2=width - 8, y1=number(y(top * share)), y2=number(y(top * share)), class_="grid"))
        parts.append(tag("text", bytes_text(top * share), x=left - 6, y=number(y(top * share) + 4), text_anchor="end"))
    if arena is not None:
        parts.append(tag("line", x1=left, x2=width - 8, y1=number(y(arena)), y2=number(y(arena)), class_="limit"))
    parts.append(tag("text", f"{len(live)} steps in program order", x=left, y=height - 6))
    if len(live) <= _TOOLTIPS:
        for i, (name, value) in enumerate(zip(steps, live, strict=True)):
            tip = tag("title", f"step {i}, {name}: {bytes_text(value)}")
            parts.append(tag("rect", tip, x=number(left + i * wide), y=10, width=number(wide), height=height - bottom - 10, class_="hover"))
    return _svg(width, height, "bytes of the arena in use, step by step", parts)


def speed(rows: Sequence[tuple[str, float, float, str]]) -> Markup:
    """Two bars for each shape: milliseconds of the original and of the optimised graph; the last entry of a row is the note behind them."""
    width, left, line = 900, 270, 38
    longest = max((max(a, b) for _, a, b, _ in rows), default=1.0) or 1.0
    room = width - left - 250
    parts = []
    for i, (name, before, after, note) in enumerate(rows):
        y = 6 + i * line
        parts.append(tag("text", tag("title", name), short(name, 44), x=left - 8, y=y + 19, text_anchor="end"))
        for offset, value, kind in ((0, before, "before"), (14, after, "after")):
            long = max(room * value / longest, 1)
            parts.append(tag("rect", x=left, y=y + offset, width=number(long), height=12, class_=kind))
            parts.append(tag("text", f"{value:.3g} ms", x=number(left + long + 5), y=y + offset + 10, class_="small"))
        parts.append(tag("text", note, x=width - 6, y=y + 18, text_anchor="end"))
    return _svg(width, len(rows) * line + 10, "time by shape: the original graph above, the optimised one below", parts)


def roofline(points: Sequence[tuple[str, float, float, float]], gflops: float, bandwidth: Sequence[Sequence[float]]) -> Markup:
    """Kernels by operations a byte and GFLOP/s, both logarithmic; ``points``: name, flops, bytes, microseconds. One roof for each level of
    memory."""
    width, height, left, bottom = 900, 320, 60, 34
    known = [(name, f / b, f / us / 1e3) for name, f, b, us in points if f > 0 and b > 0 and us > 0]
    if not known:
        return Markup("")
    low_x, high_x = min(0.1, *(x for _, x, _ in known)), max(1000.0, *(x for _, x, _ in known))
    high_y = gflops * 2
    low_y = min(gflops / 1e4, *(y / 2 for _, _, y in known))

    def x(value: float) -> float:
        return left + (width - left - 10) * math.log(value / low_x) / math.log(high_x / low_x)

    def y(value: float) -> float:
        return 10 + (height - bottom - 10) * (1 - math.log(max(value, low_y) / low_y) / math.log(high_y / low_y))

    parts = []
    for exponent in range(math.ceil(math.log10(low_x)), math.floor(math.log10(high_x)) + 1):
        at = number(x(10.0**exponent))
        parts.append(tag("line", x1=at, x2=at, y1=10, y2=height - bottom, class_="grid"))
        parts.append(tag("text", f"{10.0**exponent:g}", x=at, y=height - bottom + 14, text_anchor="middle"))
    for exponent in range(math.ceil(math.log10(low_y)), math.floor(math.log10(high_y)) + 1):
        at = number(y(10.0**exponent))
        parts.append(tag("line", x1=left, x2=width - 10, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", f"{10.0**exponent:g}", x=left - 6, y=number(y(10.0**exponent) + 4), text_anchor="end"))
    for size, rate in bandwidth:
        ridge = min(gflops / rate, high_x)
        start, corner = f"{number(x(low_x))} {number(y(low_x * rate))}", f"{number(x(ridge))} {number(y(min(ridge * rate, gflops)))}"
        path = f"M{start}L{corner}H{number(x(high_x))}"
        tip = f"{rate:.1f} GB/s with {bytes_text(size)} in use, {gflops:.0f} GFLOP/s"
        parts.append(tag("path", tag("title", tip), d=path, class_="roof"))
    for name, intensity, rate in known:
        tip = tag("title", f"{name}: {intensity:.3g} operations a byte, {rate:.3g} GFLOP/s")
        parts.append(tag("circle", tip, cx=number(x(intensity)), cy=number(y(rate)), r=5, class_="point"))
    parts.append(tag("text", "operations a byte", x=width - 10, y=height - 4, text_anchor="end"))
    parts.append(tag("text", "GFLOP/s", x=left + 4, y=20))
    return _svg(width, height, "kernels with products under the roofline of this machine", parts)


def _svg(width: int, height: int, label: str, parts: Sequence[Markup]) -> Markup:
    return tag("svg", parts, class_="plot", viewbox=f"0 0 {width} {height}", role="img", aria_label=label)
