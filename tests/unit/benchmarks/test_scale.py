from benchmarks.scale import RATES, cores, shipped, tables
from tests.worlds.paths import ROOT


def test_the_page_shows_what_the_constants_give() -> None:
    page = (ROOT / "docs" / "scale.md").read_text().splitlines()
    lines = [line for line in tables() if line]
    assert [line for line in lines if line not in page] == []


def test_a_core_is_half_busy_and_one_is_the_least() -> None:
    assert [cores(rate, 1.6) for rate in RATES] == [1, 1, 1, 4, 32, 320]


def test_twice_the_rate_takes_half_the_time_and_the_wire_stays() -> None:
    slow, fast = shipped(1, 0.5, 0.5), shipped(10, 1.0, 1.0)
    assert (slow["encode"], fast["encode"]) == (100.0, 50.0)
    assert slow["wire"] == 10 * fast["wire"]
    assert slow["codec"] < slow["product"]
