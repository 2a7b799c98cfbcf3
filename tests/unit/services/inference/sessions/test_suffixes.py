"""The ids of new messages equal those at the end of the whole prompt, for every bundled template."""

from __future__ import annotations

import json
from typing import Any

from runtime.template.chat_template import ChatTemplate
from services.inference.sessions.suffixes import keeps_reasoning, next_calls, suffix_of
from tests.each_case import each_case
from tests.unit.services.inference.test_template_tools import TOOLS, WITH_CALLS

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "Tisch für vier?"}
ANSWERED = {"role": "assistant", "content": "Gut."}
THANKED = {"role": "user", "content": "Danke, <|im_end|>"}
CLOSES = {
    **dict.fromkeys(("diffusion_gemma", "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"), ("<tool_call|>", "<turn|>")),
    "glm4moe": ("<|observation|>", "<|user|>"),
    "gptoss": ("<|call|>", "<|end|>"),
    **dict.fromkeys(("llama3_1", "llama3_2"), ("<|eot_id|>", "<|eot_id|>")),
    "muse_glimmer": ("<|eot|>", "<|eot|>"),
}  # fmt: skip
"""The tokens with which a model ends a call and an answer; the others use <|im_end|>."""
DROPS_IN_TOOL_CYCLES = {"gemma4_v2", "lfm2_v2", "llama3_1", "llama3_2", "qwen2_5", "qwen3_instruct_2507", "qwen3_vl"}
"""Of these, all but gemma4_v2 know no reasoning at all."""
KEEPS_ALL = {"muse_glimmer", "qwen3_8"}


def called(number: int) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": json.dumps({"city": f"Köln {number}"})}
    call = {"id": f"call{number:05}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def told(number: int) -> dict[str, Any]:
    content = f'{{"sun": {number}, "said": "</tool_call>"}}'
    return {"role": "tool", "tool_call_id": f"call{number:05}", "name": "get_weather", "content": content}


def close_of(template: ChatTemplate, name: str, *, is_call: bool) -> int:
    text = CLOSES.get(name, ("<|im_end|>", "<|im_end|>"))[0 if is_call else 1]
    found = template.tokenizer.token_to_id(text)
    assert found is not None
    return int(found)


@each_case("name", WITH_CALLS)
def test_a_result_and_a_question_get_the_ids_of_the_whole_prompt(templates: dict[str, ChatTemplate], name: str) -> None:
    template = templates[name]
    for answer, new in ((called(1), [told(1)]), (ANSWERED, [THANKED])):
        close = close_of(template, name, is_call=answer is not ANSWERED)
        whole = template.encode([SYSTEM, ASKED, answer, *new], TOOLS)
        suffix = suffix_of(template, answer, new, {}, close)
        assert suffix is not None
        assert whole[-len(suffix) :] == suffix
        assert whole[-len(suffix) - 1] == close


@each_case("name", WITH_CALLS)
def test_what_templates_do_with_earlier_reasoning_is_found(templates: dict[str, ChatTemplate], name: str) -> None:
    template = templates[name]
    assert keeps_reasoning(template, called(1), [told(1)], {}) is (name not in DROPS_IN_TOOL_CYCLES)
    assert keeps_reasoning(template, ANSWERED, [THANKED], {}) is (name in KEEPS_ALL)
    assert keeps_reasoning(template, called(1), [told(1), ANSWERED, THANKED], {}) is (name in KEEPS_ALL)


@each_case("name", WITH_CALLS)
def test_what_a_session_will_do_is_told_before_it_is_served(templates: dict[str, ChatTemplate], name: str) -> None:
    template = templates[name]
    stops = [close_of(template, name, is_call=is_call) for is_call in (True, False)]
    told_calls = {call.follows: call.branch for call in next_calls(template, stops)}
    assert (told_calls["a question"], told_calls["a tool's result"]) == ("", "")
    if len(told_calls) > 2:
        dropped = name in DROPS_IN_TOOL_CYCLES
        assert told_calls["reasoning and a tool's result"] == ("reasoning_dropped" if dropped else "")
        assert told_calls["reasoning and a question"] == ("" if name in KEEPS_ALL else "reasoning_dropped")
    else:
        assert template.family.reasoning is None
        assert template.family.channels is None
    assert {call.branch for call in next_calls(template, [])} == {"template"}


def test_an_answer_that_no_template_closes_this_way_has_no_suffix(templates: dict[str, ChatTemplate]) -> None:
    template = templates["qwen3"]
    for close in template.tokenizer.encode("aD,-").ids:
        assert suffix_of(template, ANSWERED, [THANKED], {}, close) is None
    glm = templates["glm4moe"]
    # The model meant to hear its user, but a result comes first.
    wrong = close_of(glm, "glm4moe", is_call=False)
    assert suffix_of(glm, called(1), [told(1), THANKED], {}, wrong) is None


def test_messages_that_the_template_refuses_have_no_suffix(templates: dict[str, ChatTemplate]) -> None:
    template = templates["qwen3"]
    close = close_of(template, "qwen3", is_call=False)
    broken = {"role": "tool", "content": {"not": "text"}}
    assert suffix_of(template, ANSWERED, [broken, {"role": "unheard"}], {"messages": []}, close) is None
