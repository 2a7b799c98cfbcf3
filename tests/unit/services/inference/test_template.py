"""Prompts: the same ids as transformers, and no template escapes the sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ContextLengthExceeded, InvalidRequest, InvalidSettings
from services.inference.template.chat_template import ChatTemplate, load_template
from services.inference.template.plain_tokenizer import bounded_ids
from tests.unit.services.inference.world import CONTEXT, TEMPLATE, make_base

RICH = """\
{{ bos_token }}{% set ns = namespace(turns=0) %}
{% for message in messages if message['role'] != 'skip' %}
    {% if message['role'] == 'stop' %}{% break %}{% endif %}
    {% set ns.turns = ns.turns + 1 %}
{{- '<|' + message.role + '|>' -}}
{% generation %}{{ message['content'] | trim }}{% endgeneration %}
{% if message.reasoning_content is defined %} ({{ message['thinking'] }}){% endif %}
{% if message.extra %}{{ message.extra | tojson(indent=2) }}{{ dict(a=1) | tojson }}{% endif %}
{{ eos_token }}
{% endfor %}
{{ ns.turns }}{% if tools %}tools{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}
"""
DEMO = Path("examples/reservations/base")
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Tisch für vier, 19 Uhr 🍽"}],
    [{"role": "system", "content": " Be <brief> & 'kind'.\n"}, {"role": "user", "content": "hi <| end |> there"}],
    [
        {"role": "user", "content": "one", "extra": {"html": "<b>", "ü": [1, None]}},
        {"role": "assistant", "content": "two", "reasoning": "because"},
        {"role": "skip", "content": "three"},
        {"role": "stop", "content": "four"},
    ],
]


@pytest.mark.parametrize("template", [TEMPLATE, RICH, "demo"])
def test_ids_equal_those_of_transformers(tmp_path: Path, template: str) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 slow, and forbidden to the service

    base = DEMO if template == "demo" else make_base(tmp_path, template)
    reference = AutoTokenizer.from_pretrained(base)
    ours = load_template(str(base))

    for messages in CONVERSATIONS:
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.encode(messages) == expected
        assert ours.tokenizer.decode(expected, skip_special_tokens=True) == reference.decode(
            expected, skip_special_tokens=True
        )


def test_an_old_folder_keeps_its_template_in_the_tokenizer_config(tmp_path: Path) -> None:
    base = make_base(tmp_path)
    (base / "chat_template.jinja").unlink()
    settings = {
        "eos_token": {"content": "<|end|>", "lstrip": False},
        "chat_template": [{"name": "default", "template": "{{ messages[0].content }}{{ eos_token }}"}],
    }
    (base / "tokenizer_config.json").write_text(json.dumps(settings))

    template = load_template(str(base))

    assert template.render([{"role": "user", "content": "hi"}]) == "hi<|end|>"
    assert template.context == CONTEXT


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].missing.deeper }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ messages.append(1) }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_a_bad_request(tmp_path: Path, template: str) -> None:
    base = load_template(str(make_base(tmp_path, template)))

    with pytest.raises(InvalidRequest, match="the chat template refused the messages"):
        base.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"])
def test_a_folder_that_lacks_a_file_is_named(tmp_path: Path, name: str) -> None:
    base = make_base(tmp_path)
    (base / name).unlink()

    with pytest.raises(InvalidSettings, match=name):
        load_template(str(base))


def test_an_empty_conversation_is_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        load_template(str(make_base(tmp_path))).encode([])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [("tokenizer.json", "{", "not a tokenizer"), ("chat_template.jinja", "{% for x %}", "template is not valid")],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    make_base(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidSettings, match=says):
        ChatTemplate(tmp_path)


def test_a_text_that_cannot_fit_is_refused_before_its_tokens_are_counted(tmp_path: Path) -> None:
    make_base(tmp_path)
    template = ChatTemplate(tmp_path)
    assert len(template.encode([{"role": "user", "content": "x" * (template.most_characters // 2)}])) > 0
    with pytest.raises(ContextLengthExceeded, match="characters"):
        template.encode([{"role": "user", "content": "x" * 20_000_000}])


def test_long_arguments_of_calls_are_refused_before_they_are_read(tmp_path: Path) -> None:
    make_base(tmp_path)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "' + "y" * 300_000 + '"}'}}
    messages: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": [call, call]}] * 2
    with pytest.raises(InvalidRequest, match="up to 1 MiB in all messages"):
        ChatTemplate(tmp_path).check_length(messages)
    ChatTemplate(tmp_path).check_length(messages[:1])


def test_ids_of_far_too_long_a_prompt_are_counted_and_not_listed(tmp_path: Path) -> None:
    make_base(tmp_path)
    tokenizer = ChatTemplate(tmp_path).tokenizer
    little, far = (tokenizer.encode("x" * num) for num in (2 * CONTEXT, 2**18 + 1))
    assert bounded_ids(little, CONTEXT) == little.ids
    with pytest.raises(ContextLengthExceeded, match="has 262145 tokens; this policy's context is 200"):
        bounded_ids(far, CONTEXT)
    assert len(bounded_ids(far, 2**18)) == 2**18 + 1
