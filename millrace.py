"""The command line. `millrace --help` lists the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from commands.api_key_commands import api_keys_app
from commands.cache import cache
from commands.dead_letter_commands import dead_letter_app
from commands.log_commands import log_app
from commands.options import DEFAULT_HOME, HomeOption
from commands.rewards.reward_commands import reward_app
from contracts.errors import InvalidSettings, MillraceError
from runtime.private_files import create_private_files

PolicyArgument = Annotated[str, typer.Option("--policy", help="Folder or hub id of the base policy.")]

app = typer.Typer(
    help="Online reinforcement learning from product telemetry.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
policy_app = typer.Typer(help="Versions of the policy: list, promote, roll back.", no_args_is_help=True)
app.add_typer(policy_app, name="policy")
app.add_typer(log_app, name="log")
app.add_typer(dead_letter_app, name="dead-letters")
database_app = typer.Typer(help="Care for the database.", no_args_is_help=True)
app.add_typer(database_app, name="database")

keys_app = typer.Typer(invoke_without_command=True)
app.add_typer(keys_app, name="keys")
keys_app.add_typer(api_keys_app, name="api")

app.add_typer(reward_app)
app.command()(cache)


@app.command()
def up(  # noqa: PLR0917 options of a command
    policy: PolicyArgument,
    task: Annotated[list[Path], typer.Option(help="Task file; give it again for more, the first is the default.")],
    home: HomeOption = DEFAULT_HOME,
    name: Annotated[str, typer.Option(help="The `model` apps ask for; by default the folder's name.")] = "",
    port: Annotated[int, typer.Option(help="Port of the HTTP endpoint.")] = 8400,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    learning_rate: Annotated[float | None, typer.Option(help="Of the trainer.")] = None,
    sentinels: Annotated[Path | None, typer.Option(help="JSON lines of messages and reference: the gate.")] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of brokers; without it the embedded log.")] = None,
    database: Annotated[str | None, typer.Option(help="postgresql+psycopg://...; without it SQLite.")] = None,
    redis: Annotated[str | None, typer.Option(help="redis://host:port/0; optional also with several replicas.")] = None,
    weights: Annotated[str | None, typer.Option(help="s3://bucket/prefix; without it a folder in the home.")] = None,
) -> None:
    """Start Millrace for your own policy and tasks; Ctrl-C ends it, the home folder keeps everything."""
    from commands.servers import Servers  # noqa: PLC0415 each command imports only what it needs
    from commands.up import run_up  # noqa: PLC0415

    run_up(
        policy=policy,
        tasks=task,
        home=home,
        name=name,
        port=port,
        device=device,
        learning_rate=learning_rate,
        sentinels=sentinels,
        servers=Servers(kafka, database, redis, weights),
    )


@app.command()
def init(  # noqa: PLR0917 options of a command
    policy: PolicyArgument,
    task: Annotated[list[Path], typer.Option(help="Task file; give it again for more, the first is the default.")],
    home: HomeOption = DEFAULT_HOME,
    name: Annotated[str, typer.Option(help="The `model` apps ask for; by default the folder's name.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    sentinels: Annotated[Path | None, typer.Option(help="JSON lines of messages and reference: the gate.")] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of brokers; without it the embedded log.")] = None,
    database: Annotated[str | None, typer.Option(help="postgresql+psycopg://...; without it SQLite.")] = None,
    redis: Annotated[str | None, typer.Option(help="redis://host:port/0.")] = None,
    weights: Annotated[str | None, typer.Option(help="s3://bucket/prefix; without it a folder in the home.")] = None,
    inference: Annotated[str, typer.Option(help="Where others reach the process: host:port.")] = "127.0.0.1:8400",
    engine: Annotated[str, typer.Option(help="As --inference.")] = "127.0.0.1:8401",
    feedback: Annotated[str, typer.Option(help="As --inference.")] = "127.0.0.1:8402",
    dashboard: Annotated[str, typer.Option(help="As --inference.")] = "127.0.0.1:8403",
) -> None:
    """Make a home ready for processes that something else starts: settings, tables, topics, keys, version 0."""
    from commands.init import run_init  # noqa: PLC0415
    from commands.servers import Servers  # noqa: PLC0415

    addresses = {"inference": inference, "engine": engine, "feedback": feedback, "dashboard": dashboard}
    servers = Servers(kafka, database, redis, weights)
    run_init(
        policy=policy,
        tasks=task,
        home=home,
        name=name,
        device=device,
        sentinels=sentinels,
        servers=servers,
        addresses=addresses,
    )


@app.command()
def demo(  # noqa: PLR0917 options of a command
    seed: Annotated[int, typer.Option(help="Seed of the simulated users.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long the users work.")] = 180.0,
    home: Annotated[Path | None, typer.Option(help="By default runs/<time>.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything up at the end.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    learning_rate: Annotated[
        float | None, typer.Option(help="Of the trainer; the delta's density falls with it.")
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Half a minute: lose nothing, learn little.")] = False,
    profile: Annotated[str, typer.Option(help="embedded, or services: Kafka, PostgreSQL, Redis, S3.")] = "embedded",
) -> None:
    """Show a model learning from its users: a reservations assistant, from about half right to over 90%."""
    from commands.demo import run_demo  # noqa: PLC0415

    sys.exit(
        run_demo(
            seed=seed,
            seconds=seconds,
            home=home,
            keep=keep,
            device=device,
            learning_rate=learning_rate,
            profile=profile,
            smoke=smoke,
        )
    )


@app.command("demo-seeds")
def demo_seeds(
    first: Annotated[int, typer.Option(help="First seed.")] = 1,
    last: Annotated[int, typer.Option(help="Last seed.")] = 5,
) -> None:
    """Run the demo for several seeds and report the worst."""
    from commands.demo import run_seeds  # noqa: PLC0415

    sys.exit(run_seeds(range(first, last + 1)))


@app.command()
def doctor(home: HomeOption = DEFAULT_HOME) -> None:
    """Say what is missing on this machine, and how to get it."""
    from commands.doctor import run_doctor  # noqa: PLC0415

    sys.exit(run_doctor(home))


@app.command()
def audit(
    home: HomeOption = DEFAULT_HOME,
    clients: Annotated[Path | None, typer.Option(help="The clients' own list, JSON lines.")] = None,
    settled: Annotated[bool, typer.Option("--settled", help="Nothing may be pending any more.")] = False,
) -> None:
    """Print the identities of the ledger; status 1 if anything is unexplained."""
    from commands.audit import audit as run_audit  # noqa: PLC0415
    from commands.audit import print_audit, read_clients  # noqa: PLC0415
    from runtime.settings import load_settings  # noqa: PLC0415

    settings = load_settings(home)
    listed = read_clients(clients) if clients else None
    result = run_audit(settings.database(), settings.event_log(), listed, settled=settled)
    print_audit(result)
    sys.exit(0 if result.balanced else 1)


@keys_app.callback()
def keys(
    context: typer.Context,
    home: HomeOption = DEFAULT_HOME,
    role: Annotated[str, typer.Option(help="app or operator.")] = "app",
    tenant: Annotated[str, typer.Option(help="Whose traffic this key carries.")] = "default",
) -> None:
    """Make an API key and print it, once; more about these with `keys api`. The other commands are about keys that sign versions."""
    from commands.keys import run_keys  # noqa: PLC0415

    if context.invoked_subcommand is None:
        run_keys(home, role, tenant)
    elif (home, role, tenant) != (DEFAULT_HOME, "app", "default"):
        raise InvalidSettings(
            f"options stand behind the command: millrace keys {context.invoked_subcommand} --home HOME"
        )


@keys_app.command("list")
def keys_list(home: HomeOption = DEFAULT_HOME) -> None:
    """Which keys are trusted here, and which one signs."""
    from commands.keys import print_keys  # noqa: PLC0415

    print_keys(home)


@keys_app.command("new")
def keys_new(home: HomeOption = DEFAULT_HOME) -> None:
    """Make the first pair of a home; `up`, `demo` and `init` do so for a new home."""
    from commands.keys import new  # noqa: PLC0415

    new(home)


@keys_app.command("rotate")
def keys_rotate(
    home: HomeOption = DEFAULT_HOME,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Only make the key and trust it: first every other home has to trust it too."),
    ] = False,
) -> None:
    """Sign with a new key from now on, or with the one that was prepared. The old one stays trusted."""
    from commands.keys import rotate  # noqa: PLC0415

    rotate(home, only_prepare=prepare)


@keys_app.command("trust")
def keys_trust(
    file: Annotated[Path, typer.Argument(help="The .pub file of another home.")],
    home: HomeOption = DEFAULT_HOME,
    replica: Annotated[
        bool, typer.Option("--replica", help="It is a replica's: believe how far it says it got, and nothing else.")
    ] = False,
) -> None:
    """Take versions that the key in this file signed."""
    from commands.keys import trust, trust_replica  # noqa: PLC0415

    (trust_replica if replica else trust)(home, file)


@keys_app.command("renew")
def keys_renew(home: HomeOption = DEFAULT_HOME) -> None:
    """Sign the list of versions again, as training and release do once an hour: for when neither runs."""
    from commands.keys import renew  # noqa: PLC0415

    renew(home)


@keys_app.command("retire")
def keys_retire(
    key: Annotated[str, typer.Argument(help="Its id; `millrace keys list` has it.")],
    home: HomeOption = DEFAULT_HOME,
    force: Annotated[bool, typer.Option("--force", help="Also if the store holds versions that it signed.")] = False,
) -> None:
    """Trust a key no longer: what it signed is refused at once, old versions too."""
    from commands.keys import retire  # noqa: PLC0415

    retire(home, key, force=force)


@app.command()
def replica(  # noqa: PLR0917 options of a command
    policy: Annotated[str, typer.Option(help="Whose versions.")],
    store: Annotated[str, typer.Option(help="s3://bucket/prefix, http(s)://..., or a folder; AWS_* for S3.")],
    folder: Annotated[
        Path, typer.Option(help="Belongs to this replica alone; trusted keys are in keys/trusted there.")
    ],
    version: Annotated[int | None, typer.Option(help="By default the one that is live.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what becomes live.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the pointer.")] = 2.0,
    name: Annotated[str, typer.Option(help="Under which the publisher knows it; by default the machine's.")] = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Take versions that nobody signed.")] = False,
    fallback: Annotated[
        list[str] | None, typer.Option(help="Another store, for when --store fails or is old; again for more.")
    ] = None,
) -> None:
    """Keep a policy's weights in a folder, in step with a weight store; needs no home, no database and no torch."""
    from commands.replica import run_replica  # noqa: PLC0415

    run_replica(
        policy=policy,
        store=store,
        folder=folder,
        version=version,
        follow=follow,
        every=every,
        name=name,
        unsigned=unsigned,
        fallbacks=fallback or (),
    )


@policy_app.command("list")
def policy_list(home: HomeOption = DEFAULT_HOME) -> None:
    """The tree of versions, with verdicts and who serves what."""
    from commands.policy import print_versions  # noqa: PLC0415

    print_versions(home)


@policy_app.command("promote")
def policy_promote(
    version: Annotated[int, typer.Argument(help="The version that shall be live.")],
    home: HomeOption = DEFAULT_HOME,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "promoted by an operator",
) -> None:
    """Make a newer version live, whatever its verdict; not one that was revoked."""
    from commands.policy import promote  # noqa: PLC0415

    promote(home, version, reason)


@policy_app.command("rollback")
def policy_rollback(
    home: HomeOption = DEFAULT_HOME,
    to: Annotated[int | None, typer.Option(help="A version; by default the accepted one before the live one.")] = None,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "rolled back by an operator",
    *,
    treatment: Annotated[
        str,
        typer.Option(
            help="What becomes of what the revoked versions learned and said: evidence (merely worse: learned again, as "
            "off-policy) or poison (never learned again)."
        ),
    ] = "evidence",
    revoke: Annotated[
        list[int] | None,
        typer.Option(
            help="Revoke this version, and what grew from it, instead of all above the target; again for more."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Without a terminal nobody is asked.")] = False,
) -> None:
    """Take the live version back and revoke what lies above; the trainer goes on from the older one."""
    from commands.policy import rollback  # noqa: PLC0415

    rollback(
        home,
        to,
        reason,
        treatment=treatment,
        revoke=set(revoke) if revoke else None,
        dry_run=dry_run,
        ask=typer.confirm if sys.stdin.isatty() and not yes else None,
    )


@database_app.command("drop-days")
def database_drop_days(
    before: Annotated[str, typer.Option(help="YYYY-MM-DD, UTC: the first day that stays.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Drop whole days of generations, signals, scores and outcomes; not while anything in them is pending (PostgreSQL)."""
    from commands.database import run_drop_days  # noqa: PLC0415

    run_drop_days(home, before)


def _add_process(name: str) -> None:
    @app.command(name, hidden=True, help=f"Run the process {name} in the foreground.")
    def command(
        home: HomeOption = DEFAULT_HOME, supervised: Annotated[bool, typer.Option("--supervised")] = False
    ) -> None:
        from commands.process import run_process  # noqa: PLC0415

        run_process(name, home, supervised=supervised)


@app.command(hidden=True)
def training(
    home: HomeOption = DEFAULT_HOME,
    supervised: Annotated[bool, typer.Option("--supervised")] = False,
    start_from: Annotated[
        str, typer.Option("--from", help="earliest or now: say where to read on when positions are lost, and end.")
    ] = "",
) -> None:
    """Run the process training in the foreground."""
    from commands.process import run_process  # noqa: PLC0415

    if start_from not in {"", "earliest", "now"}:
        raise InvalidSettings(f"--from {start_from}: it is earliest, the oldest record there is, or now, the log's end")
    run_process("training", home, supervised=supervised, **({"start_from": start_from} if start_from else {}))


for _name in ("engine", "web", "inference", "feedback", "dashboard", "episodes", "rewards", "release"):
    _add_process(_name)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: expected failures are one line on standard error and status 1. `arguments`: those of the process."""
    create_private_files()
    try:
        app(arguments)
    except MillraceError as error:
        typer.echo(f"millrace: {error.message}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
