"""Figures and times as the templates print them: the twin of static/format.js. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Any

import jinja2
import structlog
from markupsafe import Markup

from runtime.metrics import DASHBOARD_FAULTS

MISSING = "\N{EN DASH}"
_STEP = 1000.0
_NONE = Markup("\N{EN DASH}")
_TIME = Markup('<time datetime="{0}" title="{1} UTC">{1} UTC</time>')

log = structlog.get_logger()


def add_filters(environment: jinja2.Environment) -> None:
    """Make these known to templates."""
    for name, function in {
        "clock": clock,
        "count": count,
        "percent": percent,
        "seconds": seconds,
        "data_size": data_size,
        "version": version,
        "words": words,
    }.items():
        environment.filters[name] = function


def clock(at: float | None) -> Markup:
    """A time in UTC, which the page's script turns into the reader's own; what no calendar has is named as it is."""
    if at is None:
        return _NONE
    try:
        moment = dt.datetime.fromtimestamp(at, dt.UTC)
    except (ValueError, OverflowError, OSError):
        DASHBOARD_FAULTS.labels("time").inc()
        log.warning("a time that cannot be shown", at=at)
        return Markup("no time: {:g}").format(at)
    return _TIME.format(moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S}")


def count(number: float | None) -> str:
    """With thousands apart."""
    return MISSING if number is None else f"{number:,}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in [0, 1]."""
    return MISSING if share is None else f"{share * 100:.{digits}f} %"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return MISSING
    for limit, divisor, form in (
        (0.1, 0.001, "{:.0f} ms"), (10, 1, "{:.1f} s"), (120, 1, "{:.0f} s"), (7200, 60, "{:.0f} min"),
        (172_800, 3600, "{:.0f} h"),
    ):  # fmt: skip
        if value < limit:
            return form.format(value / divisor)
    return f"{value / 86400:.0f} d"


def data_size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if value < _STEP:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _STEP
    return f"{value:.1f} TB"


def version(number: int | None) -> str:
    """`v7`; -1 stands for an answer that no token was sampled for."""
    if number is None:
        return "none"
    return "no version" if number < 0 else f"v{number}"


def words(name: Any) -> str:
    """A name of ours as words."""
    return str(name).replace("_", " ")
