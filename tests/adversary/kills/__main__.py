"""SIGKILL at random moments: is what is left always exactly one of two versions?

    python -m tests.adversary.kills weights --kills 1000          as many kills of a publisher, and of a replica
    python -m tests.adversary.kills weights --kills 20 --json     one object instead of the table
    python -m tests.adversary.kills engine --kills 30             the engine as a command, its weights in a bucket
    python -m tests.adversary.kills engine --kills 3 --forked     the same engine without its imports at each start
    python -m tests.adversary.kills trainer --kills 30            the trainer, compared bit for bit with a run without kills
    python -m tests.adversary.kills feedback --kills 20           the process that takes feedback, under load; also on servers
    python -m tests.adversary.kills sessions --kills 100          the serving API in the middle of sessions (--redis URL: kept there)

The module of each says what is killed and what is checked. Exits with 1 if anything else was seen.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import print_table


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.adversary.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--seed", type=int, default=1)
    shared.add_argument("--folder", type=Path, help="on the disk to test; by default a temporary one")
    shared.add_argument("--json", action="store_true", help="print one object")
    subjects = parser.add_subparsers(dest="subject", required=True)
    weights = subjects.add_parser("weights", parents=[shared], help="kill a publisher and a replica")
    weights.add_argument("--kills", type=int, default=1000, help="of a publisher, and as many of a replica")
    engine = subjects.add_parser("engine", parents=[shared], help="kill an engine under load")
    engine.add_argument("--kills", type=int, default=30)
    engine.add_argument("--users", type=int, default=3, help="answers under way all the time")
    engine.add_argument("--checked", type=int, default=300, help="answers whose log-probs are computed again")
    engine.add_argument("--forked", action="store_true", help="start engines without their imports")
    trainer = subjects.add_parser("trainer", parents=[shared], help="kill the trainer anywhere")
    trainer.add_argument("--kills", type=int, default=30)
    feedback = subjects.add_parser("feedback", parents=[shared], help="kill the process that takes feedback")
    feedback.add_argument("--kills", type=int, default=20)
    sessions = subjects.add_parser("sessions", parents=[shared], help="kill the serving API under sessions")
    sessions.add_argument("--kills", type=int, default=100)
    sessions.add_argument("--turns", type=int, default=10)
    sessions.add_argument("--at-once", type=int, default=8)
    sessions.add_argument("--redis", help="redis://host:port/0; without it what is kept lies in a file of the home")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        figures = _run(folder, options)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(figures))
    else:
        _print(figures)
    return 0 if figures["good"] else 1


def _run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    if options.subject == "weights":
        from tests.adversary.kills.weights import kill_publisher_and_replica  # noqa: PLC0415 without torch

        return kill_publisher_and_replica(folder, options.kills, options.seed)
    if options.subject == "feedback":
        from tests.adversary.kills.feedback import kill_feedback  # noqa: PLC0415 as above

        return kill_feedback(folder, options.kills, options.seed)
    if options.subject == "sessions":
        from tests.adversary.kills.sessions import run  # noqa: PLC0415 as above

        return run(options.kills, options.at_once, options.turns, options.redis, options.seed)
    if options.subject == "trainer":
        from tests.adversary.kills.trainer import kill_trainer  # noqa: PLC0415 loads torch

        return kill_trainer(folder, options.kills, options.seed)
    from tests.adversary.kills.engine import kill_engine  # noqa: PLC0415 loads torch

    return kill_engine(
        folder,
        options.kills,
        seed=options.seed,
        is_forked=options.forked,
        num_users=options.users,
        num_checked=options.checked,
    )


def _print(figures: dict[str, Any]) -> None:
    for process, places in figures.get("killed_behind", {}).items():
        print_table(f"{process}: {figures['kills'][process]} kills", ["behind", "kills"], list(places.items()))
    rows = [(name, figures[name]) for name in figures if name not in {"killed_behind", "problems"}]
    print_table("found", ["", ""], rows)
    problems = figures["problems"]
    for problem in problems.items() if isinstance(problems, dict) else problems:
        print(problem)


if __name__ == "__main__":
    sys.exit(main())
