"""Every table, by the process that writes its rows; all others only read them (docs/decisions/0001).

every worker, its own rows   position, outbox, dead_letter
every process at its start,  log_topic: which log the database was written with, and how far it went. Episodes updates it once a
  and episodes               minute; the command line adds how many unread records an accepted loss cost
every process, its own row   process_beat: its newest sign of life
command line                 api_key
migrations                   home_secret: the secret of the draw of arms, made once
dashboard                    dashboard_session
engine                       swap; engine_replica: its own row, or that of the vLLM server that the process follows
inference                    agent_session: keys of single sessions, and what their calls used of their budgets
feedback                     received_signal, signal_count; rejection_count: refused items by reason, part of `rejected` in
                             signal_count; new rows of waiting_signal: signals whose key has no answer yet
episodes                     generation, signal, outcome: the join and the ledger
                             join_key: the newest answer that an app's own key or a session stands for
                             session_call: the calls of each session, and which call each one goes on from
                             ledger_epoch, ledger_change: the trainer's epochs as the log reports them, how far the outcomes of
                             each are valid, and which outcomes to look at again after that changed
                             in received_signal: rows of signals that it makes itself (follow-ups, parts of a session's signal),
                             and the completion of a signal that waited for its key, so that the count stays exact. It also takes
                             rows out of waiting_signal
episodes and drop_days       generation_count: records of the log without a row, counted as duplicate or dropped
audit and drop_days          ledger_seal: how many generations of a day an audit found in the log or drop_days took out, and the sum of
                             their hashes; ledger_mark: how far in the log these seals go
rewards                      score; behaviour, alarm: statistics of answers per version, and outliers
                             submitter, signal_delay: how much each person said, how long each signal takes
                             vote, vote_pace: who decided a sample, the weight of that vote, how fast votes come
                             heard: what people said of answers that graders call equally good
                             judge_verdict, judge_spend: what judges answered, and what they cost
training                     training_step; training_lease, training_epoch: who may write, and every epoch that was issued
                             version_claim: every version that was cut, with its parent and its epoch
                             doomed: what training will delete or has deleted. A process that points an arm at a version removes
                             the version's row, unless deletion has begun
release                      verdict; sentinel_answer, gate_anchor: answers to the gate's questions, versions to compare with
                             train, train_point: the release trains, and what each look found; train_answer: the answers that a
                             train compares, as the log reports them; webhook_delivery: moves of arms to tell others of
                             shadow_pair: marks of both answers to each prompt of a shadow; error_budget: what may still be risked
release, command line,       train_hold: every time that operators froze the arms, pinned a version, or resumed
and dashboard
release and operators        revocation: versions that never serve, compare or pass the gate again
training, release, operators assignment, assignment_change, weight_snapshot (`millrace keys renew`), by compare-and-set
"""

# isort would write one statement for each name.
# ruff: isort: skip_file

from __future__ import annotations

from contracts.tables.base import MAX_KEY as MAX_KEY, metadata as metadata
from contracts.tables.rewards import (
    alarm as alarm,
    behaviour as behaviour,
    heard as heard,
    judge_spend as judge_spend,
    judge_verdict as judge_verdict,
    score as score,
    signal_delay as signal_delay,
    submitter as submitter,
    vote as vote,
    vote_pace as vote_pace,
)
from contracts.tables.serving import (
    agent_session as agent_session,
    api_key as api_key,
    assignment as assignment,
    assignment_change as assignment_change,
    dashboard_session as dashboard_session,
    doomed as doomed,
    engine_replica as engine_replica,
    error_budget as error_budget,
    gate_anchor as gate_anchor,
    home_secret as home_secret,
    process_beat as process_beat,
    revocation as revocation,
    sentinel_answer as sentinel_answer,
    shadow_pair as shadow_pair,
    swap as swap,
    train as train,
    train_answer as train_answer,
    train_hold as train_hold,
    train_point as train_point,
    training_epoch as training_epoch,
    training_lease as training_lease,
    training_step as training_step,
    verdict as verdict,
    version_claim as version_claim,
    webhook_delivery as webhook_delivery,
    weight_snapshot as weight_snapshot,
)
from contracts.tables.stream import IS_HEARD as IS_HEARD
from contracts.tables.stream import IS_PENDING as IS_PENDING
from contracts.tables.stream import (
    dead_letter as dead_letter,
    generation as generation,
    generation_count as generation_count,
    join_key as join_key,
    ledger_change as ledger_change,
    ledger_epoch as ledger_epoch,
    ledger_mark as ledger_mark,
    ledger_seal as ledger_seal,
    log_topic as log_topic,
    outbox as outbox,
    outcome as outcome,
    position as position,
    received_signal as received_signal,
    rejection_count as rejection_count,
    session_call as session_call,
    signal as signal,
    signal_count as signal_count,
    waiting_signal as waiting_signal,
)
