"""Every metric of every process: names, units and labels in one place, following Prometheus' conventions.

Labels have few values: never a key, a person or a completion. Versions are values of gauges, so that they create no new time series.
Prometheus sees no increase in a counter whose first value is 1. So counters are there from the start, at 0, for every value of their
labels that is known beforehand (`_born`); alarms about the others also look at series that are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import get_args

from prometheus_client import Counter, Gauge, Histogram

from contracts.records import Fault, ScoreStatus, State

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_GROUPS = ("episodes", "rewards", "training", "release")


def _born(name: str, documentation: str, **labels: Sequence[str]) -> Counter:
    """A counter that begins at 0 for every combination of its labels' values."""
    counter = Counter(name, documentation, list(labels))
    for values in product(*labels.values()):
        counter.labels(*values)
    return counter


# Every process.
LAST_STEP_NAME = "millrace_last_step_timestamp_seconds"
LAST_STEP = Gauge(LAST_STEP_NAME, "When the main loop of this process last finished a step.")
CLOCK = Gauge("millrace_clock_timestamp_seconds", "This process's clock, read at each scrape.")
TROUBLE = Gauge(
    "millrace_trouble", "1 while a part of the process fails again and again; its log has the reason.", ["name"]
)
DISK_FREE_BYTES = Gauge("millrace_disk_free_bytes", "Free space where this process writes.", ["disk"])
DISK_SIZE_BYTES = Gauge("millrace_disk_size_bytes", "Size of the disk where this process writes.", ["disk"])

# The supervisor, `millrace up`.
CHILD_ENDS = Counter(
    "millrace_child_ends_total", "Times that a process ended unasked and was started again.", ["child"]
)

# Every HTTP service.
REQUESTS = Counter("millrace_requests_total", "Requests answered.", ["service", "status"])
REQUEST_SECONDS = Histogram(
    "millrace_request_seconds",
    "From the first byte of a request to the last of its answer.",
    ["service"],
    buckets=_FAST,
)
REQUESTS_IN_FLIGHT = Gauge("millrace_requests_in_flight", "Requests being answered.", ["service"])

# Inference.
GENERATIONS = Counter("millrace_generations_total", "Choices that ended.", ["arm", "purpose", "finish_reason"])
SAMPLED = Counter(
    "millrace_generations_sampled_total",
    "Users' logged answers: exploring (temperature 0.7 or more), sharper, or greedy.",
    ["task", "how"],
)
TOKENS = Counter("millrace_tokens_total", "Tokens of prompts and completions.", ["kind"])
CACHED_TOKENS = Counter("millrace_cached_tokens_total", "Tokens of prompts that an engine had computed before.")
TURNS = Counter("millrace_session_turns_total", "Calls of sessions: extended, or why rendered anew.", ["branch"])
NOT_LOGGED = Counter("millrace_generations_not_logged_total", "Answered, but lost for training: log and spool failed.")
SPOOL_RECORDS = Gauge("millrace_spool_records", "Generations that wait on disk until the log is back.")
SPOOL_BYTES = Gauge("millrace_spool_bytes", "Size of the spooled generations.")
SPOOL_OLDEST_SECONDS = Gauge("millrace_spool_oldest_seconds", "Age of the oldest spooled generation.")

# Feedback.
SIGNALS = Counter("millrace_signals_total", "Items of feedback by result on arrival.", ["fate"])

TELEMETRY_IGNORED = _born(
    "millrace_telemetry_ignored_total",
    "Events, spans and log records that are no scores: received, and not kept.",
    origin=("langfuse", "otlp"),
)

# Workers on the log: episodes, rewards, training.
RECORDS = Counter("millrace_records_total", "Records handled.", ["group", "topic"])
BEHIND_SECONDS = Gauge("millrace_behind_seconds", "Age of the record handled last; 0 if none is left.", ["group"])
STEP_SECONDS = Histogram("millrace_step_seconds", "One batch: handle, commit, relay.", ["group"], buckets=_FAST)
TRANSACTION_SECONDS = Histogram(
    "millrace_transaction_seconds",
    "The write transaction of a batch, from its first statement on.",
    ["group"],
    buckets=_FAST,
)
LOST_PARTITIONS = _born(
    "millrace_lost_partitions_total", "Batches rolled back because another replica took the partition.", group=_GROUPS
)
WAITS = _born("millrace_waits_total", "Times that the log or the database was away.", group=_GROUPS)
DEAD_LETTERS = _born("millrace_dead_letters_total", "Records that could not be processed.", group=_GROUPS)
HALTED = Gauge("millrace_halted", "1 if the worker halted because too many records could not be processed.", ["group"])
TICK_FAILURES = _born("millrace_tick_failures_total", "Times that passing time could not be applied.", group=_GROUPS)

# Every process that reads the weight store.
WEIGHT_JUNK = Counter(
    "millrace_weight_junk_total", "Times that an object in the weight store could not be read or verified.", ["code"]
)
WEIGHT_SNAPSHOT_EXPIRES = Gauge(
    "millrace_weight_snapshot_expires_timestamp_seconds", "When the newest snapshot of the versions expires."
)

# Every process that makes ids, or relies on a log.
CLOCK_OFFSET_SECONDS = Gauge("millrace_clock_offset_seconds", "This clock minus the database's; 0 if it is the same.")
LOG_LOST_RECORDS = Gauge("millrace_log_lost_records", "Records that the database relies on and the log lacks.")

# Episodes.
LEDGER_IGNORED = _born(
    "millrace_ledger_ignored_total",
    "Outcomes of a trainer's epoch that the database did not issue.",
    state=get_args(State),
)
SPANS = _born(
    "millrace_spans_total",
    "Spans of users' answers, by what became of them.",
    fate=("sent", "refused", "expired", "unreadable"),
)
CURATED = Counter("millrace_curated_total", "Prompts by decision of the curation rules.", ["task", "decision"])

# Rewards.
SCORES = _born(
    "millrace_scores_total",
    "Experiences by status and owner of the fault.",
    status=get_args(ScoreStatus),
    fault=get_args(Fault),
)
REWARD = Histogram("millrace_reward", "Rewards given.", buckets=(0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0))
JUDGE_CALLS = Counter("millrace_judge_calls_total", "Calls to a judge by result.", ["judge", "fate"])
JUDGE_TOKENS = Counter("millrace_judge_tokens_total", "Tokens of judges' prompts and verdicts.", ["judge", "kind"])
JUDGE_MONEY = Counter("millrace_judge_money_total", "Money spent, in the currency of the task file.", ["judge"])
JUDGE_SHARE = Gauge("millrace_judge_share", "Share of the answers that a judge sees.", ["judge"])
JUDGE_ORDER_FLIPS = Counter("millrace_judge_order_flips_total", "Comparisons that changed with their order.", ["judge"])
JUDGE_DISAGREEMENT = Histogram(
    "millrace_judge_disagreement",
    "Largest difference between the members of a judge.",
    ["judge"],
    buckets=(0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
)
BEHAVIOUR_ALARMS = Gauge("millrace_behaviour_alarms", "Alarms of the last hour about behaviour.", ["task", "name"])
NULL_SHARE = Gauge(
    "millrace_null_share",
    "Share of the newest version's samples that have no reward because of a fault that is not the model's: of all samples, or of a "
    "cluster.",
    ["task", "among"],
)

# Release: what its trains compare.
TRAIN_ANSWERS = Counter("millrace_train_answers_total", "Users' answers that a train or the lift compares.", ["arm"])
TRAIN_LEFT_OUT = Counter(
    "millrace_train_left_out_total", "Users' answers of a compared arm that are no evidence, by reason.", ["reason"]
)

# Training.
TRAINING_STEPS = Counter("millrace_training_steps_total", "Optimizer steps.")
TRAINING_SAMPLES = _born("millrace_training_samples_total", "Samples by final state.", state=get_args(State))
TRAINING_CORRECTIONS = Counter(
    "millrace_training_corrections_total", "Later revisions of trained samples, by result.", ["reason"]
)
TRAINING_TEXTS = Counter(
    "millrace_training_texts_total",
    "Text that a step learned, by kind (target, pair, thumb), and edits that it did not, by reason.",
    ["result"],
)
TRAINING_STEP_ERRORS = Counter(
    "millrace_training_step_errors_total",
    "Samples that made their step fail, by class of the error or reason of the guard.",
    ["error"],
)
TRAINING_REPLAYS = _born(
    "millrace_training_replayed_steps_total",
    "Steps of the journal that a restart took again: with the recorded result, or another.",
    result=("same", "different"),
)
TRAINING_FIGURE = Gauge("millrace_training_figure", "Figures of the last step, as the dashboard shows them.", ["name"])
PUBLISH_FAILING = Gauge("millrace_publish_failing", "1 while the newest version cannot be written to the weight store.")
PUBLISHED_VERSION = Gauge("millrace_published_version", "The newest version cut.")

# Engine.
ENGINE_VERSION = Gauge("millrace_engine_version", "The version that an arm serves.", ["arm"])
ENGINE_IN_FLIGHT = Gauge("millrace_engine_requests_in_flight", "Requests in an arm's batch.", ["arm"])
ENGINE_OUT_OF_ROTATION = Gauge(
    "millrace_engine_out_of_rotation", "1 while inference sends an engine replica no requests.", ["engine", "reason"]
)
USERS_IN_FLIGHT = Gauge(
    "millrace_users_in_flight",
    "Users' answers that engines make or that wait for one; no rollouts, no gate.",
    ["policy"],
)
ENGINE_REQUESTS_MOVED = Counter(
    "millrace_engine_requests_moved_total", "Requests that an engine replica did not answer, by why.", ["reason"]
)
SWAP_PAUSE_SECONDS = Histogram("millrace_swap_pause_seconds", "Generation paused for new weights.", buckets=_FAST)

# Release.
TRAIN_MOVES = Counter("millrace_train_moves_total", "Moves of the release train.", ["kind"])
TRAIN_SHARE = Gauge("millrace_train_share", "Share of the users that an arm gets.", ["arm"])
TRAIN_STOPPED = Gauge("millrace_train_stopped", "1 while no new evidence reaches the running train.")
TRAIN_WITHOUT_SLOT = Gauge(
    "millrace_train_without_slot",
    "1 while versions that pass the gate wait because no engine has a canary slot any more.",
)
HOLD_ACTIVE = Gauge("millrace_hold_active", "1 while operators hold the arms.", ["kind"])
HOLD_SECONDS = Gauge("millrace_hold_seconds", "How long operators have held the arms; 0 if they do not.")
WEBHOOKS_WAITING = Gauge("millrace_webhooks_waiting", "Messages that a receiver has not accepted yet.")
WEBHOOKS_OLDEST_SECONDS = Gauge("millrace_webhooks_oldest_seconds", "Age of the oldest message that waits.")
WEBHOOK_TRIES = Counter("millrace_webhook_tries_total", "Messages sent to a receiver, by result.", ["fate"])
VERDICTS = _born("millrace_verdicts_total", "Candidates judged.", accepted=("true", "false"))
NO_VERDICTS = Counter(
    "millrace_no_verdicts_total",
    "Attempts of the gate that an infrastructure fault ended without a verdict; the gate tries again.",
)
GATE_ANSWERS = Counter("millrace_gate_answers_total", "Answers to questions of the gate and of shadows.")
CANDIDATE_AGE_SECONDS = Gauge("millrace_candidate_age_seconds", "How long the candidate has waited; 0 without one.")
LIVE_VERSION = Gauge("millrace_live_version", "The version that serves users.")
LIVE_AGE_SECONDS = Gauge("millrace_live_age_seconds", "How long it has served them.")
TRAIN_STAGE = Gauge(
    "millrace_train_stage", "Stage of the release train: -1 in shadow, then from 0; NaN while the track is free."
)
TRAIN_FAILURES = Counter(
    "millrace_train_failures_total",
    "Looks of the release train, or of the lift, that a fault of ours ended; nothing moved, and release looks again.",
)

# Dashboard.
LEDGER_UNEXPLAINED = Gauge("millrace_ledger_unexplained", "Must be 0: unexplained differences.", ["kind"])
LEDGER_LOOK_AGE = Gauge(
    "millrace_ledger_look_age_seconds",
    "Seconds since the ledger was last checked successfully; only the process that checks it reports this.",
    ["policy"],
)
LEDGER_SEAL_AGE = Gauge(
    "millrace_ledger_seal_age_seconds",
    "Seconds since an audit last balanced and was sealed; since the home was made if there was none.",
)
DASHBOARD_FAULTS = _born(
    "millrace_dashboard_faults_total",
    "Things that the dashboard could not show: a record, or a whole refresh.",
    what=("time", "flow", "look", "evidence"),
)
TRAINER_MISSING_SECONDS = Gauge(
    "millrace_trainer_missing_seconds",
    "Seconds since a trainer last renewed its lease on the policy; 0 while one holds it.",
    ["policy"],
)
DEAD_LETTERS_OPEN = Gauge("millrace_dead_letters_open", "Dead letters that nobody has dealt with.", ["group"])
LAG_RECORDS = Gauge("millrace_lag_records", "Records appended but not handled yet.", ["group", "topic", "partition"])
