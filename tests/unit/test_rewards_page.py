"""What docs/rewards.md teaches is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contracts.tasks.loading import load_tasks
from contracts.tasks.signals import MEANINGS
from rewards.verifiers.registry import kinds
from rewards.worker import RewardsHandler
from tests.each_case import each_case

PAGE = Path("docs/rewards.md").read_text(encoding="utf-8")
TASK_FILES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", TASK_FILES, ids=lambda text: text.split('"')[1])
def test_every_task_file_on_the_page_can_be_used_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "task.toml"
    path.write_text(text)
    tasks = load_tasks((path,))
    RewardsHandler(tasks)
    assert all(task.signals_weight > 0 for task in tasks.values())


def test_there_are_three() -> None:
    assert len(TASK_FILES) == 3


@each_case("name", sorted({*kinds(), *MEANINGS}))
def test_the_page_names_every_verifier_and_every_meaning(name: str) -> None:
    assert f"`{name}`" in PAGE
