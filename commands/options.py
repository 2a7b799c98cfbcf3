"""Options that several commands share, and what they say of outside servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from contracts.errors import InvalidSettings
from runtime.settings import Settings

DEFAULT_HOME = Path("runs/home")
HomeOption = Annotated[Path, typer.Option("--home", help="Folder with the settings, log, database and weights.")]
PolicyOption = Annotated[str, typer.Option("--policy", help="Folder or hub id of the base policy.")]
ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider",
        metavar="openai|anthropic|URL",
        help="Pass requests on to somebody else's model, instead of a policy, or in front of one. Its key: OPENAI_API_KEY, ANTHROPIC_API_KEY "
        "or MILLRACE_PROVIDER_KEY.",
    ),
]
ProviderModelOption = Annotated[str, typer.Option("--provider-model", help="The provider's name of the model.")]
_PRICE = "Dollars for a million tokens"
InputPriceOption = Annotated[float | None, typer.Option("--input-price", help=f"{_PRICE} of the provider's prompts.")]
OutputPriceOption = Annotated[float | None, typer.Option("--output-price", help=f"{_PRICE} of the provider's answers.")]
TASK_HELP = "Task file. Repeat it for more tasks; the first is the default."
TaskFilesOption = Annotated[list[Path], typer.Option("--task", help=TASK_HELP)]
NameOption = Annotated[
    str, typer.Option("--name", help="The `model` that apps ask for. Default: the name of the policy's folder.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
SentinelsOption = Annotated[
    Path | None, typer.Option("--sentinels", help="Test cases of the gate: JSON lines with messages and reference.")
]
KafkaOption = Annotated[str | None, typer.Option("--kafka", help="Brokers, host:port. Default: the embedded log.")]
DatabaseOption = Annotated[str | None, typer.Option("--database", help="postgresql+psycopg://... Default: SQLite.")]
RedisOption = Annotated[
    str | None, typer.Option("--redis", help="redis://host:port/0. Optional, even with several replicas.")
]
WeightsOption = Annotated[
    str | None, typer.Option("--weights", help="Weight store, s3://bucket/prefix. Default: a folder in the home.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of millrace.toml without an option of its own, for example partitions=12 or kafka_tls=true; may be repeated.",
    ),
]
LearningRateOption = Annotated[float | None, typer.Option("--learning-rate", help="Learning rate of the trainer.")]
AdapterOption = Annotated[
    int | None,
    typer.Option(
        "--adapter",
        metavar="RANK",
        min=1,
        help="Train a LoRA adapter of this rank beside the policy, not all of its weights.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="millrace; vllm: servers in vLLM's own environment. Default of `up` on a GPU: vllm, else millrace.",
    ),
]
EnginePythonOption = Annotated[
    Path | None, typer.Option("--vllm-python", help="Interpreter of vLLM's environment. Default: that of `make vllm`.")
]
EnginesOption = Annotated[
    int | None,
    typer.Option("--engines", min=0, max=64, help="Replicas of our own engine. Default: 1, and 0 with vllm."),
]
EngineUrlsOption = Annotated[
    list[str] | None,
    typer.Option("--engine-url", help="A server of vLLM that runs already, http://host:port; may be repeated."),
]
EngineServersOption = Annotated[
    int, typer.Option("--vllm-replicas", min=1, help="vLLM servers: the first serves live, the second candidate.")
]
SlotsOption = Annotated[
    str | None,
    typer.Option(
        "--slots",
        help="Arms that engines hold, of live, candidate, learning, canary and holdout, with commas: one for each server of vLLM; "
        "else those of each of our replicas. Default: live,candidate; kept from earlier starts.",
    ),
]


class Servers(NamedTuple):
    """Kafka, PostgreSQL, Redis and an object store. None means: embedded, in the home. The names are those of `Settings`."""

    kafka: str | None = None
    database_url: str | None = None
    redis: str | None = None
    weights_url: str | None = None

    @property
    def is_shared(self) -> bool:
        """True if log and database take many readers and writers: every service is a process and can have replicas."""
        return self.kafka is not None and self.database_url is not None

    @property
    def replicas(self) -> dict[str, int]:
        """How many of each process to start, if not one. An embedded log or database has one reader."""
        return dict.fromkeys(("inference", "feedback", "episodes", "rewards"), 2) if self.is_shared else {}


EMBEDDED = Servers()


def chosen_settings(given: Sequence[str] | None) -> dict[str, str]:
    """The values of `--set NAME=VALUE`. Raises InvalidSettings: it is not of that form, or another option sets that name."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or name not in Settings.model_fields:
            raise InvalidSettings(f"--set takes NAME=VALUE with a name of [millrace] (docs/settings.md), not {text!r}")
        if name in _WITH_OPTION:
            raise InvalidSettings(f"--set {name}: it has an option of its own, see --help")
        found[name] = value
    return found


_WITH_OPTION = {
    *("home", "run", "policy", "base", "tasks", "device", "database_url", "kafka", "redis", "weights_url"),
    *(f"{process}_{part}" for process in ("web", "engine", "feedback", "dashboard") for part in ("host", "port")),
}
