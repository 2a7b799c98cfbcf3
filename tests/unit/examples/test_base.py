import json
import math
from pathlib import Path
from typing import Any, cast

import pytest

from examples.reservations.sentences import Booking

BASE = Path(__file__).parents[3] / "examples" / "reservations" / "base"
MAX_NUM_PARAMETERS = 1_500_000


@pytest.fixture(scope="module")
def header() -> dict[str, Any]:
    """The JSON that opens a safetensors file, behind eight bytes of little-endian length."""
    with (BASE / "model.safetensors").open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        tensors = cast("dict[str, Any]", json.loads(file.read(length)))
    tensors.pop("__metadata__", None)
    return tensors


def test_every_tensor_is_bf16(header: dict[str, Any]) -> None:
    assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}


def test_the_policy_is_tiny(header: dict[str, Any]) -> None:
    assert sum(math.prod(tensor["shape"]) for tensor in header.values()) <= MAX_NUM_PARAMETERS


def test_everything_an_endpoint_loads_is_there() -> None:
    names = {path.name for path in BASE.iterdir()}
    assert names >= {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_an_answer_is_nine_tokens_with_its_end_and_any_text_survives() -> None:
    from tokenizers import Tokenizer  # noqa: PLC0415 - the other tests need the standard library only

    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    answer = Booking(4, "19:30", "Lee").json() + "<|end|>"
    assert len(tokenizer.encode(answer).ids) == 9
    text = "Un dîner pour 123 à 7:05, 予約 🎉 {x}"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_template_marks_roles_and_opens_the_answer() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - as above

    template = ImmutableSandboxedEnvironment().from_string((BASE / "chat_template.jinja").read_text())
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "{}"},
        {"role": "user", "content": "Again"},
    ]
    turns = "<|system|>Be brief.<|end|><|user|>Hello<|end|><|assistant|>{}<|end|><|user|>Again<|end|>"
    assert template.render(messages=messages) == turns
    assert template.render(messages=messages, add_generation_prompt=True) == turns + "<|assistant|>"
