"""The texts of a chat template itself, read from its syntax tree. Pure."""

from __future__ import annotations

from typing import NamedTuple

from jinja2 import nodes

_FILTERS = frozenset({"e", "escape", "forceescape", "striptags", "urlencode", "urlize", "xmlattr"})


class TemplateTexts(NamedTuple):
    """The texts of a template.

    Attributes:
        said: all texts, inside and outside of expressions.
        compared: texts inside expressions; the template may compare a message's text with them, or cut it there.
        rewrites: True if the template may escape characters, as HTML or JSON.
    """

    said: frozenset[str]
    compared: frozenset[str]
    rewrites: bool


def template_texts(template: nodes.Template) -> TemplateTexts:
    """Read the syntax tree of a template."""
    compared = frozenset(node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str))
    outside = frozenset(node.data for node in template.find_all(nodes.TemplateData))
    filters = {node.name for node in template.find_all(nodes.Filter)}
    keywords = {node.key for node in template.find_all(nodes.Keyword)}
    rewrites = not _FILTERS.isdisjoint(filters) or "ensure_ascii" in keywords
    return TemplateTexts(compared | outside, compared, rewrites)
