from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from contracts.errors import InvalidSettings
from runtime.settings import Section, Settings, load_section, load_settings, make_section, write_settings


class Kitchen(Section):
    """A process of its own."""

    heat: float = Field(default=1.0, ge=0)
    """Degrees."""
    name: str = "k"
    """How it is called."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = tmp_path / 'a "home" with \\ and\ttab'
    return Settings(home=home, run="r", policy="p", base="b", tasks=(tmp_path / "task.toml",))


def test_what_is_written_is_read(settings: Settings) -> None:
    write_settings(settings, {"kitchen": Kitchen(heat=2.5, name="größe")})
    assert load_settings(settings.home) == settings
    assert load_section(settings.home, "kitchen", Kitchen) == Kitchen(heat=2.5, name="größe")


def test_what_a_person_wrote_outlives_the_next_start(settings: Settings) -> None:
    path = write_settings(settings, {"kitchen": Kitchen()})
    path.write_text(path.read_text().replace("heat = 1.0", "heat = 7.0") + "\n[engine]\nthreads = 3\n")

    write_settings(settings, {"kitchen": Kitchen(name="told")})

    assert load_section(settings.home, "kitchen", Kitchen) == Kitchen(heat=7.0, name="told")
    assert "[engine]\nthreads = 3" in path.read_text()


@pytest.mark.parametrize(
    ("wrong", "says"), [("heat = -1", "heat"), ("heta = 1", "heta"), ("heat = ", "millrace.toml"), ("\xff", "utf-8")]
)
def test_a_mistake_is_named_and_nothing_is_written_over_it(settings: Settings, wrong: str, says: str) -> None:
    path = write_settings(settings, {})
    path.write_bytes(f"[kitchen]\n{wrong}\n".encode("latin-1"))
    before = path.read_bytes()
    with pytest.raises(InvalidSettings, match=says):
        load_section(settings.home, "kitchen", Kitchen)
    with pytest.raises(InvalidSettings, match=says):
        write_settings(settings, {"kitchen": Kitchen()})
    assert path.read_bytes() == before


def test_a_wrong_option_names_itself() -> None:
    with pytest.raises(InvalidSettings, match=r"\[kitchen\] heat: .* greater than or equal to 0"):
        make_section("[kitchen]", Kitchen, heat=-1)


def test_sites_are_a_list_or_one_text_with_commas_and_nothing_but_sites(settings: Settings) -> None:
    sites = ("https://app.example", "http://127.0.0.1:5173")
    for given in (",".join(sites), [*sites]):
        made = make_section("[millrace]", Settings, **settings.model_dump() | {"feedback_origins": given})
        assert made.feedback_origins == sites
    for wrong in ("*", "null", "https://app.example/", "app.example", "https://App.example"):
        with pytest.raises(InvalidSettings, match="feedback_origins"):
            make_section("[millrace]", Settings, **settings.model_dump() | {"feedback_origins": wrong})
