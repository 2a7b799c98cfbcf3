"""The state of every generation and every signal, as the ledger holds them."""

from __future__ import annotations

from sqlalchemy import Connection, select

from contracts.ids import sample_key
from contracts.ledger import PENDING, effective_state
from contracts.tables import generation, received_signal, signal


def generation_states(connection: Connection) -> dict[str, tuple[str, str]]:
    """Sample key to (purpose, effective state), for every generation."""
    rows = connection.execute(
        select(generation.c.completion_id, generation.c.choice, generation.c.purpose, effective_state().label("state"))
    )
    return {sample_key(row.completion_id, row.choice): (row.purpose, row.state) for row in rows}


def signal_states(connection: Connection) -> dict[str, str]:
    """Signal id to state, for every acknowledged signal."""
    accepted = connection.execute(select(received_signal.c.id)).scalars()
    settled = {row.id: row.state for row in connection.execute(select(signal.c.id, signal.c.state))}
    return dict.fromkeys(accepted, PENDING) | settled
