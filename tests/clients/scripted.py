"""An engine that does what the question says, so that an agent's calls are known beforehand: `python -m tests.clients.scripted FOLDER`.

A question has a line `Do: [{"think": ..., "call": [NAME, ARGUMENTS]}, ..., {"say": ...}]`, one step for each answer. The engine counts
the answers behind the last such line. Calls are written without spaces, in Hermes' form: no template writes them again in just that way.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from tokenizers import Tokenizer

from tests.worlds.engines.mock import generation_of, serve

LINE = "Do: "
_SCRIPT = re.compile(rf"^.*{LINE}(\[.*\])", re.MULTILINE)
_ANSWER, _END = "<|im_start|>assistant", "<|im_end|>"
_NOTHING: dict[str, Any] = {"say": "There is nothing to do."}


def question(steps: Sequence[dict[str, Any]]) -> str:
    """What a user asks."""
    return f"{LINE}{json.dumps(steps)}"


def answer_to(prompt: str) -> str:
    """What the engine writes behind a prompt."""
    step = _NOTHING
    for found in _SCRIPT.finditer(prompt):
        steps = json.loads(found[1])
        step = [*steps, _NOTHING][min(prompt.count(_ANSWER, found.end()) - 1, len(steps))]
    thought = f"<think>\n{step['think']}\n</think>\n\n" if "think" in step else ""
    parts = [step["say"]] if "say" in step else []
    if "call" in step:
        called = dict(zip(("name", "arguments"), step["call"], strict=True))
        call = json.dumps(called, separators=(",", ":"))
        parts.append(f"<tool_call>\n{call}\n</tool_call>")
    return thought + "\n".join(parts) + _END


def main() -> None:
    """Serve until killed; prints the port."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the tokenizer")
    tokenizer = Tokenizer.from_file(str(parser.parse_args().folder / "tokenizer.json"))

    def generate(body: bytes) -> list[bytes]:
        prompt = tokenizer.decode(json.loads(body)["token_ids"], skip_special_tokens=False)
        return generation_of(tokenizer.encode(answer_to(prompt), add_special_tokens=False).ids, "stop")

    uvloop.run(serve(0, 0.0, generate))


if __name__ == "__main__":
    main()
