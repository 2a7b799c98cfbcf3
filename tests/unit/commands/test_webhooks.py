"""`millrace policy webhook-test`: what came back, from whom, and that a receiver that was gone is told again."""

from __future__ import annotations

from pathlib import Path

import pytest
from standardwebhooks import Webhook

from commands.home import Home
from pipelines.release.webhooks import repository
from pipelines.release.webhooks.messages import FILE_NAME
from pipelines.release.webhooks.settings import WebhookSettings
from runtime.settings import write_settings
from tests.command_line import run_here
from tests.worlds.release.receiver import receiving


def configure(home: Home, *urls: str) -> None:
    write_settings(home.settings, {"webhooks": WebhookSettings(urls=urls, private_hosts=("127.0.0.1",))})


def test_a_test_says_what_came_back_and_wakes_a_receiver_that_was_gone(home: Home) -> None:
    folder, policy = home.settings.home, home.settings.policy
    with receiving() as good, receiving() as broken:
        configure(home, good.url, broken.url)
        with home.settings.transaction() as connection:
            repository.know_receiver(connection, policy, good.url, 0.0)
            repository.set_receiver_problem(connection, policy, good.url, "410 Gone")
        broken.then = 500
        ran = run_here("policy", "webhook-test", "--home", str(folder))
        with home.settings.snapshot() as connection:
            known = repository.receiver(connection, policy, good.url)
    assert ran.returncode == 1
    first, second = ran.stdout.splitlines()
    assert first.startswith(f"{good.url}: accepted, 204 No Content, after 0.")
    assert second.startswith(f"{broken.url}: failed, 500 Internal Server Error, after 0.")
    assert known is not None
    assert known.problem == ""
    [post] = good.posts
    told = Webhook((folder / FILE_NAME).read_text().strip()).verify(post.body, post.headers)
    assert (told["type"], told["data"]["policy"]) == ("test", policy)


def test_all_accepted_is_status_0(home: Home) -> None:
    with receiving() as good:
        configure(home, good.url)
        assert run_here("policy", "webhook-test", "--home", str(home.settings.home)).returncode == 0


def test_without_urls_it_says_what_to_write(home: Home) -> None:
    configure(home)
    ran = run_here("policy", "webhook-test", "--home", str(home.settings.home))
    assert ran.returncode == 1
    assert '[webhooks] and urls = ["https://..."]' in ran.stderr
    assert not (home.settings.home / FILE_NAME).exists()


@pytest.mark.parametrize("line", ['urls = ["ftp://x"]', 'url = ["https://x"]', 'urls = "https://x"'])
def test_a_mistake_in_the_section_is_named(home: Home, line: str, tmp_path: Path) -> None:
    configure(home)
    path = tmp_path / "millrace.toml"
    text = path.read_text()
    path.write_text(text[: text.index("[webhooks]")] + f"[webhooks]\n{line}\n")
    ran = run_here("policy", "webhook-test", "--home", str(tmp_path))
    assert ran.returncode == 1
    assert "[webhooks] url" in ran.stderr
