from __future__ import annotations

from pathlib import Path

from sqlalchemy import select

from contracts import assignments
from contracts.tables import swap
from engines.following.repository import FollowingRepository
from runtime.database import Database
from runtime.days import migrate
from services.engine.repository import SwapRecord, keep_swap


def test_assignments_in_and_swaps_out(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'millrace.db'}")
    migrate(database)
    assert FollowingRepository(database, "demo").assigned() == {}
    with database.transaction() as connection:
        for arm, version in (("live", 4), ("candidate", None)):
            assignments.move(
                connection,
                policy="demo",
                arm=arm,
                version=version,
                expected_epoch=0,
                writer="test",
                reason="test",
                root="r" * 64 if version else None,
            )
    wanted = {name: (arm.version, arm.root) for name, arm in FollowingRepository(database, "demo").assigned().items()}
    assert wanted == {"live": (4, "r" * 64), "candidate": (None, None)}
    record = SwapRecord(
        policy="demo", arm="live", version=4, at=1.5, stage_seconds=0.2, pause_seconds=0.001, gap_seconds=None,
        num_changed=10, density=0.01, payload_bytes=25,
    )  # fmt: skip
    keep_swap(database, record, "eu-1")
    with database.snapshot() as connection:
        (row,) = connection.execute(select(swap)).mappings()
    assert {"policy", "version", "pause_seconds"} < row.keys()
    assert row["replica"] == "eu-1"
    kept = {name: value for name, value in row.items() if name not in {"id", "replica"}}
    assert kept == {name: getattr(record, name) for name in kept}
    database.close()
