"""What is known of samples, beside a plain dictionary per checkpoint."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import Damaged, StaleWrite, Unavailable
from contracts.ids import new_completion_id, sample_key
from pipelines.training.checkpoints.checkpoint import MARK, SAMPLES, CheckpointStore
from pipelines.training.known.experiences import generated_at, pack_key, unpack_key
from pipelines.training.known.known_samples import KnownSamples, SampleChanges, SampleFile
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.samples.intake import Intake
from pipelines.training.state import Fate, TrainerState, Undone, cut_version, roll_back
from tests.unit.pipelines.training.builders import newest_in

KEYS = [sample_key(new_completion_id(), 0), sample_key(new_completion_id(), 12), "k", ""]


def test_keys_come_back_and_sort_by_time() -> None:
    odd = [
        "a",
        "chatcmpl-x:0",
        f"{new_completion_id()}:01",
        f"{new_completion_id()}",
        f"{new_completion_id().upper()}:0",
    ]
    for key in [*KEYS, *odd]:
        assert unpack_key(pack_key(key)) == key
    assert len(pack_key(KEYS[0])) == 17
    early, later = generated_at(KEYS[0]), generated_at(KEYS[1])
    assert early is not None
    assert later is not None
    assert early <= later
    assert generated_at("k") is None


def commit(samples: KnownSamples, file: SampleFile) -> int:
    try:
        samples.written(file, samples.hand_over().commit(file, 1))
    except Unavailable:
        samples.not_written()
        raise
    return samples.mark


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.sampled_from(KEYS), st.integers(0, 3)),
            st.tuples(st.just("forget"), st.sampled_from(KEYS)),
            st.tuples(st.just("commit")),
            st.tuples(st.just("hand over")),
            st.tuples(st.just("written")),
            st.tuples(st.just("not written")),
            st.tuples(st.just("go back"), st.integers(0, 5)),
            st.tuples(st.just("prune"), st.integers(0, 5)),
        ),
        max_size=30,
    )
)
def test_each_mark_holds_what_was_known_then(history: list[tuple[object, ...]]) -> None:
    with TemporaryDirectory() as folder:
        file = SampleFile(Path(folder) / SAMPLES)
        samples, known = KnownSamples(file), dict[str, int]()
        marks: list[tuple[int, dict[str, int]]] = [(0, {})]
        pending: tuple[SampleChanges, dict[str, int]] | None = None
        for name, *arguments in history:
            mapping = samples.mapping(b"u", int)
            if name == "set":
                mapping[str(arguments[0])] = known[str(arguments[0])] = int(str(arguments[1]))
            elif name == "forget" and arguments[0] in known:
                del mapping[str(arguments[0])]
                del known[str(arguments[0])]
            elif name == "commit" and pending is None:
                marks.append((commit(samples, file), dict(known)))
            elif name == "hand over" and pending is None:
                pending = samples.hand_over(), dict(known)
            elif name == "written" and pending is not None:
                # In another thread, while samples change further.
                samples.written(file, pending[0].commit(file, 1))
                marks.append((samples.mark, pending[1]))
                pending = None
            elif name == "not written":
                samples.not_written()
                pending = None
            elif name == "go back":
                pending = None
                del marks[int(str(arguments[0])) + 1 :]
                samples, known = KnownSamples(file, marks[-1][0]), dict(marks[-1][1])
            elif name == "prune" and pending is None and samples.mark == marks[-1][0] and len(marks) > 1:
                # The older checkpoints are deleted first. A commit is due, or rows of an abandoned future remain.
                commit(samples, file)
                marks[-1] = (samples.mark, dict(known))
                del marks[1 : min(int(str(arguments[0])), len(marks) - 1)]
                del marks[0]
                file.prune(marks[0][0], 1)
                assert dict(KnownSamples(file, marks[0][0]).mapping(b"u", int)) == marks[0][1]
            assert dict(samples.mapping(b"u", int)) == known
            assert {key: samples.mapping(b"u", int).get(key) for key in KEYS} == {key: known.get(key) for key in KEYS}
        file.close()


def a_store(folder: Path, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(folder, keep=keep)


def save(store: CheckpointStore, state: TrainerState) -> str:
    return store.save(Checkpoint(state, {}, {}))


def test_an_older_checkpoint_knows_what_it_knew(tmp_path: Path) -> None:
    store, state = a_store(tmp_path), TrainerState(epoch=1)
    state.fates["a"], state.unrewarded["b"] = Fate(1, "trained"), 4
    save(store, state)
    state.fates["a"], state.fates["c"] = Fate(2, "stale"), Fate(1, "stale")
    del state.unrewarded["b"]
    newest = save(store, state)
    (tmp_path / newest / "weights.safetensors").write_bytes(b"")

    found, refused = a_store(tmp_path).load_newest()

    assert [item.name for item in refused] == [newest]
    assert found is not None
    assert (found.state.fates, found.state.unrewarded) == ({"a": Fate(1, "trained")}, {"b": 4})
    found.state.fates["d"] = Fate(1, "stale")
    found.state.epoch = 2
    save(a_store(tmp_path), found.state)
    again = newest_in(tmp_path)
    assert again.state.fates == {"a": Fate(1, "trained"), "d": Fate(1, "stale")}


def test_fates_of_older_checkpoints_move_into_the_file(tmp_path: Path) -> None:
    state = TrainerState(epoch=1, fates={"a": Fate(1, "trained", version=1)}, unrewarded={"b": 2}, lineage=[1, 0])
    name = save(a_store(tmp_path), state)
    assert b"trained" not in (tmp_path / name / "state.json").read_bytes()
    found = newest_in(tmp_path)
    assert (found.state.fates, found.state.unrewarded) == ({"a": Fate(1, "trained", version=1)}, {"b": 2})


def test_a_replaced_trainer_writes_nothing_and_deletes_nothing(tmp_path: Path) -> None:
    zombie, successor = TrainerState(epoch=1), TrainerState(epoch=2)
    zombie.fates["a"] = Fate(1, "trained")
    save(a_store(tmp_path), zombie)
    save(a_store(tmp_path), successor)
    zombie.fates["b"] = Fate(1, "trained")
    with pytest.raises(StaleWrite, match="another trainer has replaced this one"):
        save(a_store(tmp_path), zombie)
    file = SampleFile(tmp_path / SAMPLES)
    assert file.prune(10**9, epoch=1, before=10**9) == 0


def test_the_file_grows_by_what_changed_and_keeps_one_row_of_a_key(tmp_path: Path) -> None:
    store, state = a_store(tmp_path), TrainerState(epoch=1)
    for round_ in range(9):
        for number in range(50):
            state.fates[f"k{number}"] = Fate(round_, "trained")
        save(store, state)
    with sqlite3.connect(tmp_path / SAMPLES) as connection:
        (number,) = connection.execute("SELECT count(*) FROM change").fetchone()
    assert number == 50 * 2, "two checkpoints are kept"


@pytest.mark.parametrize("lost", ["file", "newest"])
def test_a_checkpoint_whose_samples_are_gone_is_refused_by_name(tmp_path: Path, lost: str) -> None:
    SampleFile(tmp_path / SAMPLES).last()
    older = {path: path.read_bytes() for path in tmp_path.glob(f"{SAMPLES}*")}
    name = save(a_store(tmp_path), TrainerState(epoch=1, fates={"a": Fate(1, "trained")}))
    for path in tmp_path.glob(f"{SAMPLES}*"):
        path.unlink()
    if lost == "newest":
        for path, content in older.items():
            path.write_bytes(content)
    found, refused = a_store(tmp_path).load_newest()
    assert found is None
    assert [(item.name, item.reason.partition(":")[0]) for item in refused] == [(name, "samples_lost")]


def test_a_flipped_bit_of_a_row_is_named(tmp_path: Path) -> None:
    save(a_store(tmp_path), TrainerState(epoch=1, fates={"a": Fate(1, "trained", applied=0.5)}))
    with sqlite3.connect(tmp_path / SAMPLES) as connection:
        (row,) = connection.execute("SELECT value FROM change").fetchone()
        connection.execute("UPDATE change SET value = ?", (row[:-1] + bytes([row[-1] ^ 1]),))
    found = newest_in(tmp_path)
    with pytest.raises(Damaged, match="the row of a has another checksum"):
        found.state.fates.get("a")


def test_a_full_disk_leaves_the_last_mark_and_the_changes(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / SAMPLES)
    samples = KnownSamples()
    samples.mapping(b"u", int).update({"a": 1})
    commit(samples, file)
    assert file._writer is not None
    file._writer.execute("PRAGMA max_page_count = 1")
    samples.mapping(b"u", int).update({f"k{number}": number for number in range(1000)})
    with pytest.raises(Unavailable, match="full"):
        commit(samples, file)
    assert dict(KnownSamples(file, samples.mark).mapping(b"u", int)) == {"a": 1}
    file._writer.execute("PRAGMA max_page_count = 1000000")
    commit(samples, file)
    assert len(KnownSamples(file, samples.mark).mapping(b"u", int)) == 1001


def test_a_rollback_reads_only_what_changed_since_the_shared_version(tmp_path: Path) -> None:
    store, state = a_store(tmp_path), TrainerState(epoch=1)
    for version in (1, 2, 3):
        state.fates[f"k{version}"] = Fate(1, "trained")
        cut_version(state, version, 0.0)
        save(store, state)
    assert [key for key, _ in state.fates_since(2)] == ["k3"]
    assert state.uncut() == {}
    roll_back(state, TrainerState(lineage=[1, 0]), {3: "poison", 2: "evidence"}, 0.0)
    assert state.fates == {"k1": Fate(1, "trained", version=1), "k3": Fate(1, "quarantined", "rollback")}
    assert (state.undone, set(state.unreported)) == ({"k2": Undone(1)}, {"k2", "k3"})


def test_a_mark_whose_row_was_pruned_is_still_known(tmp_path: Path) -> None:
    store, state = a_store(tmp_path, keep=1), TrainerState(epoch=1, fates={"a": Fate(1, "trained")})
    state.expired_before = (generated_at(KEYS[0]) or 0.0) + 1.0
    save(store, state)
    del state.fates["a"]
    save(store, state)
    state.fates[KEYS[0]] = Fate(1, "stale", "expired")
    save(store, state)
    save(store, state)
    found = newest_in(tmp_path)
    assert found.state.fates == {}


def test_what_expired_is_forgotten_and_never_new(tmp_path: Path) -> None:
    key, other = KEYS[0], "no completion"
    state = TrainerState(epoch=1, fates={key: Fate(1, "trained"), other: Fate(1, "trained")})
    store = a_store(tmp_path, keep=1)
    save(store, state)
    state.expired_before = (generated_at(key) or 0.0) + 1.0
    save(store, state)
    assert state.fates.keys() == {other}
    assert (tmp_path / save(store, state) / MARK).read_bytes() == b"2"
    assert Intake(state)._is_expired(key)
    assert not Intake(state)._is_expired(other)
    assert not Intake(state)._is_expired(sample_key("chatcmpl-ffffffff-ffff-7fff-8fff-ffffffffffff", 0))
