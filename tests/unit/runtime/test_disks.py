"""What Prometheus is told of the disks."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from runtime.disks import watch_disks


def free(disk: str) -> float | None:
    return REGISTRY.get_sample_value("millrace_disk_free_bytes", {"disk": disk})


def test_a_disk_is_measured_once_and_at_each_scrape(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    watch_disks({"test home": tmp_path / "home", "test weights": tmp_path / "home" / "not" / "yet"})
    assert free("test weights") is None
    usage = shutil.disk_usage(tmp_path)
    assert free("test home") == pytest.approx(usage.free, rel=0.5)
    assert REGISTRY.get_sample_value("millrace_disk_size_bytes", {"disk": "test home"}) == usage.total
    (tmp_path / "home").rmdir()
    assert math.isnan(free("test home") or 0.0)


def test_another_disk_has_its_own_name(tmp_path: Path) -> None:
    watch_disks({"test own": tmp_path, "test proc": Path("/proc")})
    assert free("test proc") is not None
