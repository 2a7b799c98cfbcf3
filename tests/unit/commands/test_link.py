"""A link that the command line prints opens the dashboard, as often as it is asked for."""

from pathlib import Path

import pytest

from commands.home import Home
from commands.link import dashboard_link
from contracts.errors import InvalidSettings
from millrace import main
from runtime.settings import write_settings
from services.dashboard.signin.repository import Sessions


def test_each_link_opens_the_dashboard(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    settings = home.settings
    write_settings(settings, {"millrace": settings})
    earlier = dashboard_link(settings.home)
    with pytest.raises(SystemExit) as ended:
        main(["link", "--home", str(settings.home)])
    printed = capsys.readouterr().out.strip()
    assert ended.value.code == 0
    database = settings.database()
    sessions, address = Sessions(database), f"{settings.dashboard_url}/?token="
    for link in (printed, earlier):
        assert link.startswith(address)
        assert sessions.find(sessions.enter(link.removeprefix(address))).role == "viewer"
    database.close()


def test_a_folder_that_is_no_home_has_no_link(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="does not exist"):
        dashboard_link(tmp_path)
