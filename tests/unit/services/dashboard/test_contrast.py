"""Every text of the pages can be read in both themes: WCAG 2.2, success criterion 1.4.3, level AA."""

import re
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from services.dashboard import app

FOLDER = Path(app.__file__).parent
LEAST = 4.5
MAY_FADE = (":disabled", ".tree .branch")
"""What may be less than opaque: disabled buttons are exempt, and a line of a drawing is no text."""
GROUNDS = ("body", ".panel", ".alarm", ".alarm.warn", ".is-live td", ".calls tr:target")
"""On these a text of every colour may stand."""
NO_TEXT = re.compile(r"::|\b(svg|rect|circle|path|bar|lengths)\b")
Colour = tuple[float, ...]


class StyleRule(NamedTuple):
    """One selector, and what it sets."""

    selector: str
    values: dict[str, str]

    @property
    def classes(self) -> set[str]:
        """The classes of the element itself; `*name` stands for a part of a class."""
        last = self.selector.split()[-1]
        return {*re.findall(r"\.([\w-]+)", last), *(f"*{part}" for part in re.findall(r'\[class\*="([\w-]+)"\]', last))}

    def holds(self, classes: set[str]) -> bool:
        parts = {part for part in self.classes if part.startswith("*")}
        own = self.classes - parts
        return bool(self.classes) and own <= classes and all(any(p[1:] in name for name in classes) for p in parts)


def styles() -> str:
    text = "\n".join((FOLDER / "static" / name).read_text() for name in ("dashboard.css", "pages.css"))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def read_rules() -> list[StyleRule]:
    found = []
    for selectors, body in re.findall(r"([^{};]+)\{([^{}]*)\}", styles()):
        pairs = (line.split(":", 1) for line in body.split(";") if ":" in line)
        values = {name.strip(): value.strip() for name, value in pairs}
        found += [
            StyleRule(selector.strip(), values) for selector in re.sub(r":where\((.*)\)", r"\1", selectors).split(",")
        ]
    return found


RULES = read_rules()
THEMES = dict(zip(("light", "dark"), (dict(re.findall(r"--([\w-]+): (#\w+)", rule)) for rule in re.findall(r":root \{([^}]*)", styles())), strict=True))  # fmt: skip
THEMES["dark"] = THEMES["light"] | THEMES["dark"]
TEXTS = [set(re.sub(r"\{[{%].*?[}%]\}", " ", classes).split())
         for page in (FOLDER / "templates").glob("*.html")
         for classes in re.findall(r'class="([^"]*)"[^>]*>(?!</)', page.read_text())]  # fmt: skip
"""The classes of each element of the templates that is not empty."""


def colour(text: str, theme: dict[str, str]) -> Colour:
    """Red, green, blue, opacity, each 0 to 1, of `#rgb`, `var(--name)` or a mix with `transparent`."""
    if mixed := re.fullmatch(r"color-mix\(in srgb, (.*) (\d+)%, transparent\)", text):
        return (*colour(mixed[1], theme)[:3], int(mixed[2]) / 100)
    digits = re.sub(r"var\(--([\w-]+)\)", lambda name: theme[name[1]], text).removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    return (*(int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)), 1.0)


def over(above: Colour, below: Colour) -> Colour:
    return (*(part * above[3] + under * (1 - above[3]) for part, under in zip(above[:3], below[:3], strict=True)), 1.0)


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted(
        sum(weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
            for weight, part in zip((0.2126, 0.7152, 0.0722), shown[:3], strict=True))
        for shown in (one, other)
    )  # fmt: skip
    return (light + 0.05) / (dark + 0.05)


def is_colour(value: str | None) -> bool:
    return value is not None and value.startswith(("var(", "#", "color-mix("))


def pairs() -> set[tuple[str, str]]:
    """Text and background, as the style sheets write them."""
    drawn = [rule for rule in RULES if not NO_TEXT.search(rule.selector)]
    inked = [rule for rule in drawn if is_colour(rule.values.get("color"))]
    filled = [rule for rule in drawn if is_colour(rule.values.get("background"))]
    own = [rule for rule in inked if rule in filled]
    inks = {rule.values["color"] for rule in inked if rule not in own}
    grounds = {rule.values["background"] for rule in filled if rule.selector in GROUNDS}
    assert len(grounds) == len(GROUNDS)
    assert {f"var(--{name})" for name in ("quiet", "accent", "good", "bad", "warn")} <= inks
    found = {
        *product({*inks, "var(--ink)"}, grounds),
        *((rule.values["color"], rule.values["background"]) for rule in own),
    }
    for classes, rule in product(TEXTS, filled):
        if rule not in own and rule.holds(classes):
            inherited = {"var(--ink)"} if "token" in classes else {"var(--ink)", "var(--quiet)"}
            found |= {(ink, rule.values["background"]) for ink in inherited}
    return found


@pytest.mark.parametrize("name", ["light", "dark"])
def test_every_text_stands_out_from_its_background(name: str) -> None:
    theme, weak = THEMES[name], {}
    panel = colour("var(--panel)", theme)
    for ink, ground in pairs():
        below = over(colour(ground, theme), panel)
        ratio = contrast(over(colour(ink, theme), below), below)
        if ratio < LEAST:
            weak[f"{ink} on {ground}"] = round(ratio, 2)
    assert weak == {}


def test_no_text_fades() -> None:
    faded = {rule.selector for rule in RULES if "opacity" in rule.values and not rule.selector.endswith(MAY_FADE)}
    assert faded == set()


def test_the_measure_is_that_of_the_standard() -> None:
    white = colour("#fff", {})
    assert contrast(white, colour("#000", {})) == pytest.approx(21)
    assert contrast(white, colour("#767676", {})) == pytest.approx(4.54, abs=0.005)
