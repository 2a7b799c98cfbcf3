"""A mock engine each of whose answers has other tokens: `python -m tests.worlds.sessions.varied_engine`. So no answer passes for another's."""

from __future__ import annotations

import argparse
import random

import uvloop

from tests.worlds.engines.mock import NUM_TOKENS, generation_of, serve

END = 1
"""The id of the token that ends a turn of the example's base policy."""
_LOWEST, _HIGHEST = 70, 600


def main() -> None:
    """Serve until killed; prints the port."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gap", type=float, default=0.0, help="ms between two tokens")
    options, dice = parser.parse_args(), random.Random(0)

    def generate(_body: bytes) -> list[bytes]:
        token_ids = [dice.randrange(_LOWEST, _HIGHEST) for _ in range(NUM_TOKENS - 1)]
        return generation_of([*token_ids, END], "stop")

    uvloop.run(serve(0, options.gap / 1000, generate))


if __name__ == "__main__":
    main()
