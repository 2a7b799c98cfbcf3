"""Tools through the real service with OpenAI's SDK: an engine with scripted tokens, and the template of each bundled family."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest

from runtime.database import Database
from services.inference import app
from tests.chat_templates.bundled import EOS, BundledTemplates, make_bundled
from tests.unit.services.inference.conftest import Inference, a_service
from tests.unit.services.inference.world import FakeEngine, Stage
from tests.unit.services.serving import make_home
from tests.worlds.tool_calls import SAMPLES, TOOLS, WEATHER

FIRST_CALL = {
    "llama": '{"name": "get_weather", "parameters": {"city": "K\\"öln", "days": 2}}',
    "muse": next(sample.calls for sample in SAMPLES if sample.name == "muse").partition("<|start|>")[0],
}
"""Of families whose template takes one call in a message, or whose messages have one."""
ANSWERS = {
    "harmony": "<|channel|>analysis<|message|>It says rain.<|end|><|start|>assistant<|channel|>final<|message|>It rains.<|return|>",
    "muse": " to=self<|message|>It says rain.<|eom|><|start|>assistant to=user<|message|>It rains.<|eot|>",
    "gemma4": "<|channel>thought\nIt says rain.<channel|>It rains.",
}
THOUGHT = "It says rain.\n</think>\n\nIt rains."
BUNDLED = {
    "qwen2_5": ("hermes", "It rains."),
    "qwen3": ("hermes", f"<think>\n{THOUGHT}"),
    "qwen3_5_think": ("qwen_xml", THOUGHT),
    "nemotron_3_nano": ("qwen_xml", THOUGHT),
    "glm4moe": ("glm", f"\n<think>{THOUGHT}"),
    "llama3_1": ("llama", "It rains."),
    "lfm2_v2": ("lfm2", "It rains."),
    "gemma4": ("gemma4", ANSWERS["gemma4"]),
    "gptoss": ("harmony", ANSWERS["harmony"]),
    "muse_glimmer": ("muse", ANSWERS["muse"]),
}
ASKED = {"role": "user", "content": "weather?"}


class Served(NamedTuple):
    """The service with one bundled template."""

    inference: Inference
    template: Any
    say: Callable[[str], None]
    calls: str
    """What its model writes to call get_weather."""
    answer: str
    """What its model writes after the result."""

    def ask(self, **changes: Any) -> Any:
        """As a rollout: the task's limit of 32 tokens is for users."""
        arguments: dict[str, Any] = {"model": "demo", "messages": [ASKED], "tools": TOOLS, "max_tokens": 4000} | changes
        headers = {"x-millrace-purpose": "rollout"}
        return self.inference.operator.chat.completions.create(**arguments, extra_headers=headers)

    @property
    def prompt(self) -> str:
        """Of the last request of the engine."""
        ids = self.inference.engine.requests[-1]["token_ids"]
        return str(self.template.tokenizer.decode(ids, skip_special_tokens=False))


Serve = Callable[[str], AbstractContextManager[Served]]


@pytest.fixture
def serving(tmp_path: Path, database: Database, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Serve:
    @contextmanager
    def served(name: str) -> Iterator[Served]:
        make_bundled(tmp_path / "base", name)
        template = BundledTemplates()[name]
        monkeypatch.setattr(app, "load_template", lambda _base: template)  # as it would load it again
        [end] = template.tokenizer.encode(EOS).ids
        engine = FakeEngine("")
        engine.end = end

        def say(text: str) -> None:
            engine.answer = [*template.tokenizer.encode(text).ids, end]

        family, answer = BUNDLED[name]
        sample = next(sample for sample in SAMPLES if sample.name == family)
        with a_service(make_home(tmp_path, stage.url), database, stage, engine, patience_seconds=20) as inference:
            opened = "I call.\n</think>\n\n" if answer == THOUGHT else ""
            yield Served(inference, template, say, opened + FIRST_CALL.get(family, sample.calls), answer)

    return served


@pytest.mark.parametrize("name", BUNDLED)
def test_a_call_its_result_and_the_answer(serving: Serve, name: str) -> None:
    with serving(name) as served:
        served.say(served.calls)
        [choice] = served.ask().choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        call = choice.message.tool_calls[0]
        assert (call.type, call.function.name) == ("function", "get_weather")
        assert json.loads(call.function.arguments) == WEATHER

        served.say(served.answer)
        results = [{"role": "tool", "tool_call_id": made.id, "content": "rain"} for made in choice.message.tool_calls]
        [choice] = served.ask(messages=[ASKED, choice.message.model_dump(exclude_none=True), *results]).choices
        assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", "It rains.", None)
        thought = getattr(choice.message, "reasoning_content", None)
        assert thought == ("It says rain." if "says" in served.answer else None)
        assert "get_weather" in served.prompt.partition("weather?")[2]
        assert "rain" in served.prompt.partition("weather?")[2]

        first, second = (generation.open() for generation in served.inference.logged())
        assert first.tool_calls[0]["function"]["name"] == "get_weather"
        assert (first.text, first.tools) == ("", TOOLS)
        assert (second.text, second.reasoning, second.tool_calls) == ("It rains.", thought or "", [])


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_a_stream_says_the_same(serving: Serve, name: str) -> None:
    with serving(name) as served:
        for text in (served.calls, served.answer, "<tool_call>broken</tool_call>"):
            served.say(text)
            [whole] = served.ask().choices
            chunks = [chunk.choices[0] for chunk in served.ask(stream=True) if chunk.choices]
            deltas = [chunk.delta for chunk in chunks]
            parts = [part for delta in deltas for part in delta.tool_calls or ()]
            heads = [part for part in parts if part.id is not None]
            made = [
                (head.function.name, "".join(part.function.arguments for part in parts if part.index == head.index))
                for head in heads
            ]
            calls = whole.message.tool_calls or []
            assert made == [(call.function.name, call.function.arguments) for call in calls]
            assert all((head.type, head.function.arguments) == ("function", "") for head in heads)
            assert [head.index for head in heads] == list(range(len(calls)))
            assert "".join(delta.content or "" for delta in deltas) == (whole.message.content or "")
            thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
            assert thought == (getattr(whole.message, "reasoning_content", None) or "")
            assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [whole.finish_reason]


def test_what_may_be_called_is_the_callers_choice(serving: Serve) -> None:
    with serving("qwen3") as served:
        served.say(served.calls)
        assert len(served.ask().choices[0].message.tool_calls) == 2
        assert len(served.ask(parallel_tool_calls=False).choices[0].message.tool_calls) == 1
        assert "get_weather" in served.prompt

        [choice] = served.ask(tool_choice="none").choices
        assert choice.message.tool_calls is None
        assert "get_weather" not in served.prompt

        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "ping"}}]}
        [choice] = served.ask(tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).choices
        assert [call.function.name for call in choice.message.tool_calls] == ["ping"]
        assert "get_weather" in choice.message.content
        assert "structured_outputs" not in served.inference.engine.requests[-1]["sampling_params"]


def test_a_required_call_is_forced_by_a_grammar(serving: Serve) -> None:
    with serving("qwen3") as served:
        served.say(served.calls)
        named = {"type": "function", "function": {"name": "ping"}}
        for changes, expected in (
            ({"tool_choice": "required"}, ("get_weather", "ping")),
            ({"tool_choice": named}, ("ping",)),
        ):
            served.ask(**changes)
            grammar = served.inference.engine.requests[-1]["sampling_params"]["structured_outputs"]["grammar"]
            assert [name for name in ("get_weather", "ping") if f'\\"{name}\\"' in grammar] == list(expected)
            assert served.inference.logged()[-1].sampling.constraint == "tool"
            assert served.inference.logged()[-1].sampling.off_support == "constrained"


def test_calls_of_a_strict_tool_are_checked_and_stay_trainable(serving: Serve) -> None:
    with serving("qwen3") as served:

        def call(**arguments: Any) -> str:
            return f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(arguments)}}}\n</tool_call>'

        strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
        for arguments, is_right in (
            ({"city": "Bonn"}, True),
            ({"city": "Bonn", "days": "two"}, False),
            ({"town": "Bonn"}, False),
        ):
            served.say(call(**arguments))
            for tools, is_call in ((strict, is_right), (TOOLS, True)):
                [choice] = served.ask(tools=tools).choices
                assert [json.loads(one.function.arguments) for one in choice.message.tool_calls or []] == (
                    [arguments] if is_call else []
                )
                assert (choice.message.content is None, choice.finish_reason) == (
                    (True, "tool_calls") if is_call else (False, "stop")
                )
                sampling = served.inference.logged()[-1].sampling
                assert (sampling.constraint, sampling.off_support) == ("", "")


def test_a_strict_tool_whose_schema_cannot_be_checked_is_refused(serving: Serve) -> None:
    with serving("qwen3") as served:
        function = {"name": "f", "strict": True, "parameters": {"type": "object", "if": {"type": "object"}}}
        with pytest.raises(openai.BadRequestError) as raised:
            served.ask(tools=[{"type": "function", "function": function}])
        assert (raised.value.param, raised.value.code) == ("tools", "invalid_schema")
        assert "'if'" in raised.value.message


def test_a_format_holds_behind_the_reasoning_and_beside_calls(serving: Serve) -> None:
    with serving("qwen3_5_think") as served:
        served.say('I think.\n</think>\n\n{"x": 1}')
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        for tools in (TOOLS, openai.omit):
            [choice] = served.ask(response_format=wanted, tools=tools).choices
            assert choice.message.content == '{"x": 1}'
            grammar = served.inference.engine.requests[-1]["sampling_params"]["structured_outputs"]["grammar"]
            assert grammar.startswith("start: thought_end")
            assert served.inference.logged()[-1].sampling.constraint == "json_schema"


def test_a_policy_that_cannot_call_refuses_tools_by_name(inference: Inference) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        inference.ask(tools=TOOLS)
    assert (raised.value.param, raised.value.code) == ("tools", "unsupported_parameter")
