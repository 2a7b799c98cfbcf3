from benchmarks.scale import RATES, cores, tables
from tests.worlds.paths import ROOT


def test_the_page_shows_what_the_constants_give() -> None:
    page = (ROOT / "docs" / "scale.md").read_text().splitlines()
    lines = [line for line in tables() if line]
    assert [line for line in lines if line not in page] == []


def test_a_core_is_half_busy_and_one_is_the_least() -> None:
    assert [cores(rate, 1.6) for rate in RATES] == [1, 1, 1, 4, 32, 320]
