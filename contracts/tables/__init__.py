"""Every table. Owners: one process writes a table's rows, others only read them (docs/decisions/0001).

position, outbox, dead_letter   every worker, its own rows
log_topic                       every process at its start, episodes once a minute: which log this is, and how far it went;
                                the command line, where a loss was accepted: how many records nobody had read
rejection_count                 feedback: how many items it refused, by reason; a part of signal_count's `rejected`
received_signal, signal_count   feedback; of received_signal episodes writes two things, so that the count stays exact: rows
                                of signals that it makes itself (follow-ups), and in a row of a signal that waited for its
                                key, whom it is about
generation, signal, outcome     episodes (the join and the ledger)
generation_count                episodes (duplicate) and whoever drops days (dropped): records of the log without a row
score                           rewards
behaviour, alarm                rewards: sums per version of what answers are like, and what stands out
submitter, signal_delay         rewards: how much each person said, how long each signal takes
vote, vote_pace                 rewards: who decided a sample and what that weighed, how fast votes come
heard                           rewards: what people said of answers that graders call equally good
judge_verdict, judge_spend      rewards: what judges answered and cost
join_key                        episodes: which answer an app's own key (kind `key`), or a `session`, means: the newest
waiting_signal                  feedback adds, episodes takes: signals whose key no answer has yet
ledger_epoch, ledger_change     episodes: the trainer's epochs as the log tells them, how far each one's outcomes hold, and
                                which outcomes have to be looked at again since that changed
training_step                   training
training_lease, training_epoch  training: who may write now, and every epoch that was ever issued
version_claim                   training: every version that was ever cut, its parent, and the epoch that cut it
doomed                          training: what it is about to delete, or has deleted and nobody may refer to; whoever moves an
                                arm to a version takes its row away, if it is not too late
revocation                      release and operators: versions that are never served, compared with or accepted again
verdict                         release
sentinel_answer, gate_anchor    release: what versions said to the gate, and whom later ones are compared with
swap                            engine
weight_snapshot                 training, release, `millrace keys renew`, by compare-and-set
assignment, assignment_change   training (candidate), release and operators, by compare-and-set
api_key                         the command line
dashboard_session               dashboard
"""

from __future__ import annotations

from contracts.tables.base import MAX_KEY, metadata
from contracts.tables.rewards import (
    alarm,
    behaviour,
    heard,
    judge_spend,
    judge_verdict,
    score,
    signal_delay,
    submitter,
    vote,
    vote_pace,
)
from contracts.tables.serving import (
    api_key,
    assignment,
    assignment_change,
    dashboard_session,
    doomed,
    gate_anchor,
    revocation,
    sentinel_answer,
    swap,
    training_epoch,
    training_lease,
    training_step,
    verdict,
    version_claim,
    weight_snapshot,
)
from contracts.tables.stream import (
    dead_letter,
    generation,
    generation_count,
    join_key,
    ledger_change,
    ledger_epoch,
    log_topic,
    outbox,
    outcome,
    position,
    received_signal,
    rejection_count,
    signal,
    signal_count,
    waiting_signal,
)

__all__ = [
    "MAX_KEY",
    "alarm",
    "api_key",
    "assignment",
    "assignment_change",
    "behaviour",
    "dashboard_session",
    "dead_letter",
    "doomed",
    "gate_anchor",
    "generation",
    "generation_count",
    "heard",
    "join_key",
    "judge_spend",
    "judge_verdict",
    "ledger_change",
    "ledger_epoch",
    "log_topic",
    "metadata",
    "outbox",
    "outcome",
    "position",
    "received_signal",
    "rejection_count",
    "revocation",
    "score",
    "sentinel_answer",
    "signal",
    "signal_count",
    "signal_delay",
    "submitter",
    "swap",
    "training_epoch",
    "training_lease",
    "training_step",
    "verdict",
    "version_claim",
    "vote",
    "vote_pace",
    "waiting_signal",
    "weight_snapshot",
]
