"""The scores of a micro-batch, and the experts of a mixture, as the trainer uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from contracts.errors import InvalidSettings
from pipelines.training.learning.packed import PackedBatch
from policy.routing import routing_of

if TYPE_CHECKING:
    from pipelines.training.learning.batch import MicroBatch
    from pipelines.training.settings import TrainingSettings
    from policy.logprobs import TokenScorer, TokenScores
    from policy.routing import Routing

log = structlog.get_logger()


def routing_for(model: Any, settings: TrainingSettings) -> Routing:
    """The model's experts, found by a trial.

    Raises:
        InvalidSettings: the settings require replay, and this model cannot.
    """
    routing = routing_of(model)
    if routing.problem and settings.replay_experts == "required":
        raise InvalidSettings(f'[training] replay_experts: "required" is not possible: {routing.problem}')
    if routing.problem and settings.replay_experts == "recorded":
        log.warning("recorded experts are not replayed", reason=routing.problem)
    return routing


def score(scorer: TokenScorer, batch: MicroBatch | PackedBatch) -> TokenScores:
    """The scores of a micro-batch, at its temperatures, over its supports, through the experts that were recorded."""
    if isinstance(batch, PackedBatch):
        return scorer.score_packed(
            batch.packing,
            batch.states_S,
            batch.labels_S,
            batch.temperature_B,
            batch.experts_NMK,
            support_SK=batch.support_SK,
        )
    return scorer(
        batch.input_ids_BL,
        batch.attention_mask_BL,
        batch.mask_BT,
        batch.temperature_B,
        batch.experts_BLMK,
        support_NK=batch.support_NK,
    )
