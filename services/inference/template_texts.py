"""What a chat template says itself, read from its syntax tree: which texts, and whether it looks at characters. Pure."""

from __future__ import annotations

from typing import NamedTuple

from jinja2 import nodes

_FILTERS = frozenset({"e", "escape", "forceescape", "striptags", "urlencode", "urlize", "xmlattr"})


class TemplateTexts(NamedTuple):
    """The texts of a template.

    Attributes:
        said: all of them, also those outside of expressions.
        compared: those inside expressions, so what a message's text may be compared with or cut at.
        rewrites: True if it writes some characters in another way, as HTML or as escapes of JSON.
    """

    said: frozenset[str]
    compared: frozenset[str]
    rewrites: bool


def template_texts(template: nodes.Template) -> TemplateTexts:
    """Read the tree of a template."""
    compared = frozenset(node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str))
    outside = frozenset(node.data for node in template.find_all(nodes.TemplateData))
    filters = {node.name for node in template.find_all(nodes.Filter)}
    keywords = {node.key for node in template.find_all(nodes.Keyword)}
    rewrites = not _FILTERS.isdisjoint(filters) or "ensure_ascii" in keywords
    return TemplateTexts(compared | outside, compared, rewrites)
