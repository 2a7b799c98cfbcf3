import msgspec
import numpy as np
import pytest
import zstandard
from blake3 import blake3

from contracts.errors import WeightsRefused
from tests.unit.weights.examples import bf16_policy, refused, stepped
from tests.unit.weights.sealed import manifest_of
from weights.codec.delta import encode, stage
from weights.codec.history import History, Moves
from weights.codec.kernels import FRESH, LONGEST_STREAK
from weights.versions.manifest import NO_HISTORY

UP, DOWN = 0, 1


def moves(size: int, *changes: tuple[int, int]) -> Moves:
    places, directions = [place for place, _ in changes], [direction for _, direction in changes]
    return Moves(np.array(places, np.uint32), np.array(directions, np.uint8), size)


def state(direction: int, remembered: int, streak: int) -> int:
    return direction << 7 | remembered << 3 | streak


def states_after(*versions: tuple[tuple[int, int], ...]) -> list[int]:
    history = History()
    for changes in versions:
        history.advance({"a": moves(4, *changes)}, "root")
    states: list[int] = history.states("a", 4).tolist()
    return states


def test_a_move_is_remembered_for_fifteen_versions_and_then_forgotten() -> None:
    for passed in range(FRESH):
        assert states_after(((1, DOWN),), *((),) * passed) == [0, state(DOWN, FRESH - passed, 1), 0, 0]
    assert states_after(((1, DOWN),), *((),) * FRESH) == [0, 0, 0, 0]


def test_moves_in_a_row_are_counted_up_to_seven_while_the_direction_is_kept() -> None:
    for count in range(1, 10):
        assert states_after(*(((0, UP),),) * count)[0] == state(UP, FRESH, min(count, LONGEST_STREAK))
    assert states_after(((0, UP),), ((0, UP),), ((0, DOWN),))[0] == state(DOWN, FRESH, 1)
    assert states_after(((0, DOWN),), ((0, UP),), ((0, UP),))[0] == state(UP, FRESH, 2)


def test_a_version_ages_first_and_notes_then() -> None:
    # What would be remembered for one version more is forgotten before the next move counts.
    assert states_after(((0, UP),), *((),) * (FRESH - 1), ((0, UP),))[0] == state(UP, FRESH, 1)
    assert states_after(((0, UP),), *((),) * (FRESH - 2), ((0, UP),))[0] == state(UP, FRESH, 2)


def test_what_was_rewritten_or_has_another_size_is_forgotten() -> None:
    history = History()
    history.advance({"a": moves(4, (0, UP)), "b": moves(2, (1, UP)), "c": moves(3)}, "one")
    history.advance({"a": moves(4), "c": moves(3)}, "two")
    assert history.states("a", 4).any()
    assert not history.states("b", 2).any()
    history.advance({"a": moves(5, (4, DOWN)), "c": moves(3)}, "three")
    assert history.states("a", 5).tolist() == [0, 0, 0, 0, state(DOWN, FRESH, 1)]
    assert history.states("a", 9).tolist() == [0] * 9
    assert history.states("unheard of", 3).tolist() == [0] * 3


def test_the_digest_is_the_chain_of_roots() -> None:
    history = History()
    assert history.digest == NO_HISTORY
    first = blake3(b"0 root-1").hexdigest(length=16)
    assert history.next_digest("root-1") == first
    history.advance({}, "root-1")
    assert history.digest == first
    history.advance({}, "root-2")
    assert history.digest == blake3(f"{first} root-2".encode()).hexdigest(length=16)
    history.reset()
    assert (history.digest, history.states("a", 1).tolist()) == (NO_HISTORY, [0])


def test_a_copy_goes_its_own_way() -> None:
    history = History()
    history.advance({"a": moves(4, (0, UP))}, "one")
    other = history.copy()
    other.advance({"a": moves(4, (3, DOWN))}, "two")
    assert history.states("a", 4).tolist() == [state(UP, FRESH, 1), 0, 0, 0]
    assert other.states("a", 4).tolist() == [state(UP, FRESH - 1, 1), 0, 0, state(DOWN, FRESH, 1)]
    assert history.digest != other.digest


def test_it_survives_a_restart_and_goes_on() -> None:
    history, base = History(), bf16_policy()
    for seed in range(3):
        target = stepped(base, 0.05, seed)
        encoded = encode(base, target, history)
        restored = History.from_bytes(history.to_bytes())
        assert restored.digest == history.digest
        staged = stage(base, manifest_of(base, encoded, history), encoded.payload, restored)
        history.advance(encoded.moves, encoded.target_root)
        restored.advance(staged.moves, staged.target_root)
        for name, tensor in target.items():
            size = tensor.data.size // 2
            assert restored.states(name, size).tolist() == history.states(name, size).tolist()
        base = target


def test_the_file_of_an_earlier_release_is_read() -> None:
    states = bytes([0, 3, 0, 255])
    content = zstandard.compress(msgspec.msgpack.encode(["digest", {"a": states}]))
    history = History.from_bytes(content)
    assert (history.digest, history.states("a", 4).tobytes()) == ("digest", states)
    assert History.from_bytes(history.to_bytes()).states("a", 4).tobytes() == states


def test_no_damage_to_its_file_is_taken_for_a_history() -> None:
    history = History()
    history.advance({"é": moves(500, *((place, place & 1) for place in range(0, 500, 7)))}, "one")
    content = history.to_bytes()
    damaged = [content[:kept] for kept in range(0, len(content), 9)] + [
        b"",
        b"no history",
        zstandard.compress(b"\x92\xa1\xff\x80"),
    ]
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        damaged.append(bytes(flipped))
    unharmed = 0
    for other in damaged:
        try:
            restored = History.from_bytes(other)
        except WeightsRefused as refused:
            assert refused.code == "corrupt_history"  # noqa: PT017 most are refused; see below for the others
        else:
            # A bit of the frame that means nothing.
            assert restored.digest == history.digest
            assert restored.states("é", 500).tolist() == history.states("é", 500).tolist()
            unharmed += 1
    assert unharmed <= 2


@pytest.mark.parametrize("given", [None, History(), History("f" * 32)])
def test_a_step_coded_with_another_history_is_refused(given: History | None) -> None:
    base, history = bf16_policy(), History()
    first = encode(base, stepped(base, 0.05), history)
    history.advance(first.moves, first.target_root)
    base, target = stepped(base, 0.05), stepped(base, 0.05, seed=2)
    encoded = encode(base, target, history)
    with refused("wrong_history"):
        stage(base, manifest_of(base, encoded, history), encoded.payload, given)


def test_a_cycle_begins_whatever_the_receiver_remembers() -> None:
    base, history = bf16_policy(), History()
    first = encode(base, stepped(base, 0.05), history)
    history.advance(first.moves, first.target_root)
    base, target = stepped(base, 0.05), stepped(base, 0.05, seed=2)
    encoded = encode(base, target, History())
    manifest = manifest_of(base, encoded, History())
    assert manifest.history == NO_HISTORY
    assert stage(base, manifest, encoded.payload, history).target_root == encoded.target_root
