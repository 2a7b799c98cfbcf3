"""A demo's curves as a picture: what users accepted, with its 95% interval, and what the gate said, over time. SVG, no library."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from contracts.intervals import share_interval
from examples.demo.curves import Bin

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 380, 56, 48, 24, 48
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_USERS, _GATE, _OWN, _QUIET = "#0b6e4f", "#9a4b00", "#3a4fb0", "#767676"


def draw_curves(curve: Sequence[Bin], title: str, goal: float) -> str:
    """An SVG document.

    Args:
        curve: acceptance over time.
        title: above the picture.
        goal: drawn as a dashed line.
    """
    last = curve[-1].seconds if curve else 1.0

    def place(seconds: float, share: float) -> tuple[float, float]:
        wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + wide * seconds / last, _TOP + high * (1 - share)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)

    bounds = [(item.seconds, *share_interval(item.accepted, item.num_signals)) for item in curve]
    band = [(seconds, high) for seconds, _, high in bounds] + [(seconds, low) for seconds, low, _ in reversed(bounds)]
    gate = [(item.seconds, item.gate) for item in curve if item.gate is not None]
    own = [(item.seconds, item.own) for item in curve if item.own is not None]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 24, title, size=15),
        *(_level(place(0.0, tick), f"{tick:.0%}") for tick in _TICKS),
        *(
            _text(place(item.seconds, 0)[0], _HEIGHT - 28, f"{item.seconds:.0f}", anchor="middle")
            for item in curve[1::2]
        ),
        _text((_WIDTH + _LEFT) / 2, _HEIGHT - 8, "seconds since the first signal", anchor="middle"),
        f'<polyline points="{path([(0.0, goal), (last, goal)])}" stroke="{_QUIET}" stroke-dasharray="5 4"/>',
        f'<polygon points="{path(band)}" fill="{_USERS}" fill-opacity=".15"/>',
        f'<polyline points="{path(gate)}" fill="none" stroke="{_GATE}" stroke-width="2"/>',
        f'<polyline points="{path([(item.seconds, item.accepted) for item in curve])}" fill="none" stroke="{_USERS}" stroke-width="3"/>',
        *(_own_share(path(own)) if own else ()),
        _text(_WIDTH - _RIGHT, 24, "the gate says", anchor="end", colour=_GATE),
        _text(_WIDTH - _RIGHT, 40, "users accept (band: 95%)", anchor="end", colour=_USERS),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _level(at: tuple[float, float], label: str) -> str:
    x, y = at
    line = f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>'
    return line + _text(x - 8, y + 4, label, anchor="end")


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(words)}</text>'


def _own_share(path: str) -> tuple[str, str]:
    """The share of the users whom the own model answers, where a provider stands in front of it."""
    line = f'<polyline points="{path}" fill="none" stroke="{_OWN}" stroke-width="2"/>'
    return line, _text(_WIDTH - _RIGHT, 12, "the own model answers", anchor="end", colour=_OWN)
