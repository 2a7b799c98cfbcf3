"""The weight codec beside its peers: how small a version is, how fast it is made and applied, what it needs of memory.

usage: python -m benchmarks.deltas [--trace FILE.npz] [--json] [--quick] [--skip-slow]

In: a trace (`benchmarks.deltas.traces`), and synthetic runs at three densities. Out: tables and a dated JSON file, or with
--json one object. Waits: for the programs among the peers. A publisher and a receiver go through all steps, each with a
history of its own, and the receiver's weights are compared after every step. Measured is the last one: speeds in GB of full
bf16 per second of one core. Encoding includes the target root and the hashes of the chunks; applying the hashes of the
chunks, decoding, the target root, the scatter and the history; both ends know the base root from the version before. The
peers hash nothing, and their containers are not counted; so our manifest is not either, except where it is said.
"""

from __future__ import annotations

import argparse
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from benchmarks.deltas.peers import DeltaPeer, missing_peers, peers
from benchmarks.deltas.tables import show
from benchmarks.deltas.tools import cpu_seconds
from benchmarks.deltas.traces import TOLERANCE, Versions, Walk, joined, learning_rate_for, random_walk, read_trace
from benchmarks.report import summarise, write_report
from contracts.errors import InvalidValue, MillraceError
from tests.worlds.versions import decode, make_signer
from weights.codec.delta import CODEC, Encoded, apply_staged, encode, stage
from weights.codec.history import History
from weights.tensors import Tensors, root_of
from weights.versions.manifest import Manifest

FOLDS = (8, 16)
DENSITIES = {"0.5%": 0.005, "1%": 0.01, "2%": 0.02}
_ROWS, _QUICK_ROWS, _COLUMNS = 2048, 512, 2048
_GIGA = 1e9
_NO_TRACE = "no trace was given (--trace FILE.npz): speeds and peers are of the synthetic 1%"
_T = TypeVar("_T")
_SPEEDS = ("encode_gb_s", "encode_and_advance_gb_s", "apply_gb_s", "apply_with_base_root_gb_s")


class DeltaMoment(NamedTuple):
    """What both ends hold before a step."""

    tensors: Tensors
    history: History
    root: str


class Chain(NamedTuple):
    """A run that publisher and receiver went through."""

    steps: list[dict[str, Any]]
    moments: dict[int, DeltaMoment]
    """By versions behind the target: 1, and the folds that the run is long enough for."""
    target: Tensors


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for; the status."""
    options = _parse(arguments)
    try:
        figures = measure(options)
    except MillraceError as error:
        print(f"deltas: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(figures))
        return 0
    show(figures)
    if not options.quick:
        print(write_report("weight-delta", {"command": _command(options), **figures}))
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures. Those of the trace are null without one, and speeds and peers are then of the synthetic 1%."""
    found = [peer for peer in peers() if not (options.skip_slow and peer.is_slow)]
    trace = None
    if options.trace:
        chain = go_through(read_trace(options.trace), f"trace {options.trace.name}")
        trace = {"name": options.trace.name, **_measured(chain, options.rounds), **_folds(chain)}
        trace["peers"] = measure_peers(found, chain, options.rounds)
    synthetic: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for is_on_grid, label in ((is_on_grid, label) for is_on_grid in synthetic for label in DENSITIES):
        chain, learning_rate = _synthetic(options.rows, label, is_on_grid)
        figures = {"learning_rate": learning_rate, **_measured(chain, options.rounds)}
        has_slow = trace is None and is_on_grid and label == "1%"
        figures["peers"] = measure_peers(
            [peer for peer in found if has_slow or not peer.is_slow], chain, options.rounds
        )
        synthetic[is_on_grid][label] = figures
    main_run = trace or synthetic[True]["1%"]
    left_out = {peer.name: "left out by --skip-slow" for peer in peers() if options.skip_slow and peer.is_slow}
    return {
        "codec": CODEC,
        "rounds": options.rounds,
        "quick": options.quick,
        "of": trace["name"] if trace else _NO_TRACE,
        "ratio_last_step": trace and trace["ratio"],
        "ratio_last_step_with_manifest": trace and trace["ratio_with_manifest"],
        "ratio_last_step_without_history": trace and trace["ratio_without_history"],
        "density_last_step": trace and trace["density"],
        **{name: main_run[name] for name in _SPEEDS},
        **{key: trace and trace[key] for back in FOLDS for key in (f"fold{back}", f"fold{back}_without_history")},
        "peers": main_run["peers"],
        "peers_skipped": left_out | missing_peers(),
        "trace": trace,
        "synthetic": synthetic[True],
        "synthetic_off_grid": synthetic[False],
    }


def go_through(versions: Versions, name: str) -> Chain:
    """Publish every step and apply it, with history at both ends.

    Raises:
        InvalidValue: the receiver ended with other weights; or see `read_trace`.
        WeightsRefused: the receiver refused a step.
    """
    num_steps, steps, moments = len(versions.steps), [], {}
    base = next(versions.tensors)
    received, sent, past, root = _copied(base), History(), History(), root_of(base)
    for number, (step, target) in enumerate(zip(versions.steps, versions.tensors, strict=True)):
        if num_steps - number in {1, *FOLDS}:
            moments[num_steps - number] = DeltaMoment(base, sent.copy(), root)
        encoded = encode(base, target, sent)
        manifest = manifest_of(encoded, root, sent.digest)
        steps.append({"step": step, **_sizes(encoded, manifest)})
        staged = stage(received, manifest, encoded.payload, past, base_root=root)
        apply_staged(received, staged)
        past.advance(staged.moves, staged.target_root)
        sent.advance(encoded.moves, encoded.target_root)
        _check(received, target)
        base, root = target, encoded.target_root
        _tell(f"{name}: step {step}, {steps[-1]['density']:.2%} changed, {steps[-1]['ratio']:.1f} times smaller")
    return Chain(steps, moments, base)


def measure_peers(found: Iterable[DeltaPeer], chain: Chain, rounds: int) -> dict[str, dict[str, float]]:
    """What each peer makes of the last step; programs run once, the others `rounds` times, and once to warm up.

    Raises:
        InvalidValue: a peer failed, or did not give the target back.
    """
    base, target = joined(chain.moments[1].tensors), joined(chain.target)
    figures = {}
    for peer in found:
        if peer.is_slow:
            _tell(f"{peer.name}: {target.nbytes / 1e6:.0f} MB")
        samples = []
        for _ in range(1 if peer.is_slow else rounds + 1):
            encode_seconds, payload = _timed(partial(peer.encode, base, target))
            decode_seconds, back = _timed(partial(peer.decode, base, payload))
            if back.tobytes() != target.tobytes():
                raise InvalidValue(f"{peer.name} gave back other weights than it was given", param="peer")
            samples.append((target.nbytes / encode_seconds / _GIGA, target.nbytes / decode_seconds / _GIGA))
        encodes, decodes = zip(*samples[0 if peer.is_slow else 1 :], strict=True)
        figures[peer.name] = {
            "ratio": target.nbytes / max(len(payload), 1),
            "encode_gb_s": summarise(encodes)["median"],
            "decode_gb_s": summarise(decodes)["median"],
        }
    return figures


def manifest_of(encoded: Encoded, base_root: str, history: str | None) -> Manifest:
    """As a publisher writes it, signed."""
    manifest = Manifest(
        policy="policy",
        run="run-1",
        version=1,
        parent=0,
        base_version=0,
        base_root=base_root,
        target_root=encoded.target_root,
        codec=CODEC,
        history=history,
        history_after=history,
        chunks=encoded.chunks,
        full_bytes=encoded.full_bytes,
        num_changed=encoded.num_changed,
        num_weights=encoded.num_weights,
        created_at=1_700_000_000.0,
        step=1,
        epoch=1,
        num_samples=1,
    )
    return make_signer("deltas").sign(manifest)


def _measured(chain: Chain, rounds: int) -> dict[str, Any]:
    base, target, last = chain.moments[1], chain.target, chain.steps[-1]
    samples = [_round(base, target) for _ in range(rounds + 1)][1:]  # the first warms up
    speeds = {name: summarise([last["full_bytes"] / seconds[name] / _GIGA for seconds in samples]) for name in _SPEEDS}
    return {
        **last,
        "ratio_without_history": last["full_bytes"] / _bytes_of(base, target, None),
        **{name: spread["median"] for name, spread in speeds.items()},
        "spread": speeds,
        "peak_memory": _memory(base, target),
        "steps": chain.steps,
    }


def _round(base: DeltaMoment, target: Tensors) -> dict[str, float]:
    """Seconds of the processor, once there and back."""
    sent = base.history.copy()

    def publish() -> tuple[Encoded, Any]:
        encoded = encode(base.tensors, target, sent)
        return encoded, encoded.chunks

    encode_seconds, (encoded, _) = _timed(publish)
    advance_seconds, _ = _timed(partial(sent.advance, encoded.moves, encoded.target_root))
    manifest = manifest_of(encoded, base.root, base.history.digest)
    seconds = [encode_seconds, encode_seconds + advance_seconds]
    for root in (base.root, None):
        received, past = _copied(base.tensors), base.history.copy()
        spent, _ = _timed(partial(_receive, received, past, manifest, encoded.payload, root))
        _check(received, target)
        seconds.append(spent)
    return dict(zip(_SPEEDS, seconds, strict=True))


def _receive(received: Tensors, past: History, manifest: Manifest, payload: bytes, base_root: str | None) -> None:
    staged = stage(received, manifest, payload, past, base_root=base_root)
    apply_staged(received, staged)
    past.advance(staged.moves, staged.target_root)


def _folds(chain: Chain) -> dict[str, float | None]:
    """The bytes of one delta over the last steps, as a share of theirs; null for a run that has not so many."""
    shares: dict[str, float | None] = {}
    for back in FOLDS:
        moment = chain.moments.get(back)
        chain_bytes = sum(step["payload_bytes"] for step in chain.steps[-back:])
        shares[f"fold{back}"] = moment and _bytes_of(moment, chain.target, moment.history) / chain_bytes
        shares[f"fold{back}_without_history"] = moment and _bytes_of(moment, chain.target, None) / chain_bytes
    return shares


def _bytes_of(moment: DeltaMoment, target: Tensors, history: History | None) -> int:
    encoded = encode(moment.tensors, target, history)
    manifest = manifest_of(encoded, moment.root, None if history is None else history.digest)
    _check(decode(moment.tensors, manifest, encoded.payload, history), target)
    return len(encoded.payload)


def _memory(base: DeltaMoment, target: Tensors) -> dict[str, Any]:
    """What encoding and applying need above what they were given; numpy reports its arrays to tracemalloc."""
    encoded = encode(base.tensors, target, base.history)
    manifest = manifest_of(encoded, base.root, base.history.digest)
    received, past = _copied(base.tensors), base.history.copy()
    largest = max(tensor.data.size for tensor in target.values())
    peaks = {
        "encode": _peak_bytes(partial(encode, base.tensors, target, base.history)),
        "apply": _peak_bytes(partial(_receive, received, past, manifest, encoded.payload, base.root)),
    }
    return {
        "largest_tensor_bytes": largest,
        "history_bytes": encoded.num_weights,
        **{f"{name}_bytes": peak for name, peak in peaks.items()},
        **{f"{name}_largest_tensors": peak / max(largest, 1) for name, peak in peaks.items()},
    }


def _peak_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _synthetic(rows: int, label: str, is_on_grid: bool) -> tuple[Chain, float]:
    walk = Walk(rows, _COLUMNS, is_on_grid=is_on_grid)
    name = f"synthetic {label}, masters {'on' if is_on_grid else 'off'} the grid"
    _tell(f"{name}: looking for the learning rate")
    learning_rate = learning_rate_for(walk, DENSITIES[label])
    chain = go_through(random_walk(walk, learning_rate), name)
    found = chain.steps[-1]["density"]
    if abs(found / DENSITIES[label] - 1) > TOLERANCE:
        raise InvalidValue(f"{name}: the last step changed {found:.3%}: take more weights", param="rows")
    return chain, learning_rate


def _sizes(encoded: Encoded, manifest: Manifest) -> dict[str, Any]:
    num_bytes = len(encoded.payload)
    manifest_bytes = len(msgspec.json.format(msgspec.json.encode(manifest)))
    return {
        "density": encoded.num_changed / encoded.num_weights,
        "ratio": encoded.full_bytes / num_bytes,
        "ratio_with_manifest": encoded.full_bytes / (num_bytes + manifest_bytes),
        "bits_per_changed_weight": 8 * num_bytes / encoded.num_changed if encoded.num_changed else None,
        "payload_bytes": num_bytes,
        "manifest_bytes": manifest_bytes,
        "full_bytes": encoded.full_bytes,
        "num_weights": encoded.num_weights,
        "num_changed": encoded.num_changed,
    }


def _timed(call: Callable[[], _T]) -> tuple[float, _T]:
    """Seconds of the processor, those of programs that ran included."""
    started = cpu_seconds()
    result = call()
    return max(cpu_seconds() - started, 1e-9), result


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in tensors.items()}


def _check(found: Tensors, target: Tensors) -> None:
    if found.keys() != target.keys() or any(
        found[name].data.tobytes() != tensor.data.tobytes() for name, tensor in target.items()
    ):
        raise InvalidValue("what was applied is not what was published: the codec is broken", param="trace")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _command(options: argparse.Namespace) -> str:
    """Without the folders of this machine."""
    trace = ["--trace", options.trace.name] if options.trace else []
    slow = ["--skip-slow"] if options.skip_slow else []
    return " ".join(["python -m benchmarks.deltas", *trace, f"--rounds {options.rounds}", *slow])


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deltas", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--trace", type=Path, metavar="FILE.npz", help="base/NAME and xor/STEP/NAME, uint16")
    parser.add_argument("--json", action="store_true", help="print one object instead of tables; writes no file")
    parser.add_argument("--rounds", type=_positive, default=7, help="of every measured time, after one to warm up")
    parser.add_argument("--rows", type=_positive, default=_ROWS, help=f"of the 8 synthetic matrices, {_COLUMNS} wide")
    parser.add_argument("--quick", action="store_true", help=f"one round, {_QUICK_ROWS} rows; writes no file")
    parser.add_argument("--skip-slow", action="store_true", help="leave out the peers that are programs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.rows = 1, min(options.rows, _QUICK_ROWS)
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
