from __future__ import annotations

from pathlib import Path

import pytest

from commands.doctor import examine, sandbox_of, versions_of
from contracts.errors import Unavailable
from pipelines.release.settings import ReleaseSettings
from rewards.sandbox.choose import MAKERS, sandbox_named, sandbox_or_problem
from rewards.sandbox.port import Sandbox
from runtime.settings import Settings, write_settings
from tests.worlds.sandboxes import NoSandbox
from tests.worlds.stores import POLICY, RUN, Folder, publish, signer
from weights.versions.keys import trusted_folder, write_public_key


def missing() -> Sandbox:
    raise Unavailable("bwrap is not installed; apt install bubblewrap")


@pytest.mark.slow
def test_the_sandboxes_that_hold_here_are_named(tmp_path: Path) -> None:
    [found] = [found for found in examine(tmp_path) if found.name == "sandbox"]
    assert (found.good, found.needed) == (True, False)
    assert found.says.startswith(sandbox_named("auto").name)


@pytest.mark.slow
def test_each_task_is_gated_or_said_not_to_be(tmp_path: Path) -> None:
    product = Path("examples/reservations").resolve()
    (tmp_path / "chat.toml").write_text('name = "chat"\n[signals.ok]\ntype = "bool"\nlabels = { true = 1.0 }\n')
    tasks = (product / "task.toml", tmp_path / "chat.toml")
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=tasks, weights_unsigned=True)
    write_settings(settings, {"release": ReleaseSettings(sentinels=product / "sentinels.jsonl")})
    gated, ungated = [found for found in examine(tmp_path) if found.name == "gate"]
    assert (gated.good, gated.needed) == (True, False)
    assert gated.says == (
        "reservations: gated by exact on 200 sentinels; detects losses of 7.0 / 9.9 / 14.2 points where versions differ on "
        "8% / 15% / 30% of them"
    )
    assert (ungated.good, ungated.needed) == (False, False)
    assert ungated.says.startswith("chat: UNGATED: none of its graders says whether an answer is right")


@pytest.mark.slow
def test_of_those_that_do_not_hold_it_is_said_why() -> None:
    found = sandbox_of({"bubblewrap": missing, "bare": NoSandbox, (name := sandbox_named("auto").name): MAKERS[name]})
    assert (found.good, found.needed) == (True, False)
    assert found.says.startswith(name)
    assert "; not bubblewrap: bwrap is not installed; apt install bubblewrap; bare: it does not" in found.says
    assert "reading files" in found.says


def test_of_one_that_shows_which_files_there_are_it_is_said() -> None:
    for name in ("sandlock", "bubblewrap"):
        if isinstance(found := sandbox_or_problem(MAKERS[name]), str):
            pytest.skip(found)
    says = sandbox_of({"sandlock": MAKERS["sandlock"]}).says
    assert says == "sandlock (it cannot hide which files and processes exist, and the size of files)"
    assert sandbox_of({"bubblewrap": MAKERS["bubblewrap"]}).says == "bubblewrap"


def test_where_none_holds_it_is_said_how_to_get_one() -> None:
    found = sandbox_of({"bubblewrap": missing})
    assert (found.good, found.needed) == (False, False)
    assert "tasks that run code are refused; get Linux 6.12 or newer, or `apt install bubblewrap`" in found.says
    assert "bwrap is not installed" in found.says


def test_objects_in_the_weight_store_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    place = Folder(tmp_path / "weights")
    for version in (0, 1):
        publish(place.open(None), version, signer(1))
    write_public_key(trusted_folder(tmp_path), signer(1).public_key)
    settings = Settings(home=tmp_path, run=RUN, policy=POLICY, base="b", tasks=(Path("none"),))
    found = versions_of(settings)
    assert (found.good, found.says) == (True, "2; no signed list yet: training writes it")
    place.put(f"{POLICY}/replicas/eu.json", b"[" * 100_000)
    place.put(f"{POLICY}/v000001/fold-000000.json", b"{}")
    place.put(f"{POLICY}/pointers/live.json", b"\xff")
    found = versions_of(settings)
    assert not found.good
    for name in ("replicas/eu.json: too_long", "fold-000000.json: corrupt_manifest", "live.json: corrupt_pointer"):
        assert name in found.says
