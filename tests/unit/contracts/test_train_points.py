from contracts import train_points
from contracts.train_points import LIFT, MAX_POINTS, primary_of
from runtime.database import Database


def test_a_long_series_is_thinned_and_keeps_its_newest_point(database: Database) -> None:
    with database.transaction() as connection:
        for number in range(2 * MAX_POINTS + 1):
            assert train_points.put(connection, "p", LIFT, float(number), {"difference": number / 1000})
        assert not train_points.put(connection, "p", LIFT, 3.0, {"difference": 9.0}), "the first of a time stays"
        train_points.put(connection, "p", primary_of(7), 1.0, {"difference": None})
        train_points.put(connection, "q", LIFT, 1.0, {"difference": None})
    with database.snapshot() as connection:
        points = train_points.read(connection, "p", LIFT)
        assert len(points) <= MAX_POINTS
        assert points[-1] == (2.0 * MAX_POINTS, {"difference": 2 * MAX_POINTS / 1000})
        assert [at for at, _ in points] == sorted(at for at, _ in points)
        assert train_points.read(connection, "p", primary_of(7)) == [(1.0, {"difference": None})]
        assert len(train_points.read(connection, "p", LIFT, since=2.0 * MAX_POINTS - 5)) == 6
