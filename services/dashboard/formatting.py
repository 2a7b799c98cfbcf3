"""Numbers and times as people read them, and faults: what cannot be shown is counted and logged, and the rest of the page is shown.

`static/format.js` writes every number the same way: a browser test compares the two.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import jinja2
import structlog
from markupsafe import Markup

from contracts.intervals import share_interval
from runtime.log.dead_letters import traceback_of
from runtime.metrics import DASHBOARD_FAULTS

MISSING = "\N{EN DASH}"
_STEP = 1000.0
_TINY, _LARGE, _FEW_TIMES = 0.001, 100, 10
_TIME = Markup('<time datetime="{0}" title="{1} UTC">{1} UTC</time>')

log = structlog.get_logger()


def note_fault(what: str, error: Exception) -> None:
    """Count a fault under `what` and log its traceback."""
    DASHBOARD_FAULTS.labels(what).inc()
    log.error("cannot be shown", what=what, traceback=traceback_of(error))


def add_filters(environment: jinja2.Environment) -> None:
    """Let templates use every function that formats as a filter of the same name."""
    for function in (between, clock, count, data_size, figure, money, percent, points, seconds, times, version, words):
        environment.filters[function.__name__] = function


def between(share: float, num: int) -> str:
    """The 95% interval of a share of `num`."""
    low, high = share_interval(share, num)
    return f"{low * 100:.0f} to {high * 100:.0f} %"


def clock(at: float | None) -> str:
    """UTC epoch seconds as an element that the page's script rewrites in the reader's time zone; as a number if no calendar has it."""
    if at is None:
        return MISSING
    try:
        moment = dt.datetime.fromtimestamp(at, dt.UTC)
    except (ValueError, OverflowError, OSError):
        DASHBOARD_FAULTS.labels("time").inc()
        log.warning("a time that cannot be shown", at=at)
        return Markup("no time: {:g}").format(at)
    return _TIME.format(moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S}")


def count(number: float | None) -> str:
    """A whole number, with commas between thousands."""
    return MISSING if number is None else f"{number:,}"


def figure(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals; without decimals from 100 on, with an exponent below 0.001."""
    if value is None:
        return MISSING
    if 0 < abs(value) < _TINY:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.{digits}f}"


def money(value: float) -> str:
    """An amount of money, without its currency."""
    return f"{value:,.2f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in [0, 1] as a percentage."""
    return MISSING if share is None else f"{share * 100:.{digits}f} %"


def points(share: float | None) -> str:
    """A difference of shares in percentage points."""
    return MISSING if share is None else f"{share * 100:.1f} points"


def times(ratio: float) -> str:
    """A factor."""
    return f"{ratio:.{1 if ratio < _FEW_TIMES else 0}f}\N{MULTIPLICATION SIGN}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits its length."""
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
    """A number of bytes, in decimal units."""
    if value is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if value < _STEP:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _STEP
    return f"{value:.1f} TB"


def version(number: int | None) -> str:
    """A version as `v7`; -1 stands for an answer without any sampled token."""
    if number is None:
        return "none"
    return "no version" if number < 0 else f"v{number}"


def words(name: Any) -> str:
    """The name of a state or a reason as words."""
    return str(name).replace("_", " ")
