"""What `millrace doctor --policy` says about a chat template: its family, and whether sessions go on token for token with it.

A template is a program, and nobody knows how long a program runs. So the one who looks is a process of its own, with limits:
`python -m commands.template_check FOLDER` prints the findings as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psutil

from commands.findings import Finding, missing
from contracts.errors import MillraceError
from contracts.files import read_small
from runtime.template.chat_template import ChatTemplate, load_template
from services.inference.sessions.suffixes import next_calls

MOST_CPU_SECONDS, _MOST_BYTES = 10, 2**31
"""Of the process: the slowest of the known templates takes a second and 200 MB."""
_ONE_THREAD = {"RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""Each thread takes room of its own, and there are as many as cores."""
_PATIENCE = 20
"""Times its seconds, on a busy machine."""
_QUESTION = [{"role": "user", "content": "How much is 2 + 2?"}]


def template_findings(folder: Path, cpu_seconds: int = MOST_CPU_SECONDS) -> list[Finding]:
    """Two findings; one, if the template cannot be used."""
    command = [sys.executable, "-m", "commands.template_check", str(folder), str(cpu_seconds)]
    loops = f"it renders a question for longer than {cpu_seconds} s of a core, so it loops"
    try:
        env, patience = os.environ | _ONE_THREAD, _PATIENCE * cpu_seconds
        ran = subprocess.run(command, capture_output=True, check=False, env=env, timeout=patience)  # noqa: S603 our own module
        return msgspec.json.decode(ran.stdout, type=list[Finding])
    except subprocess.TimeoutExpired:
        problem = loops
    except msgspec.MsgspecError:
        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        problem = loops if ran.returncode in {-signal.SIGXCPU, -signal.SIGKILL} else (lines or ["no word"])[-1]
    return [missing("template", f"{folder}: the chat template cannot be used: {problem[:300]}")]


def findings_here(folder: Path) -> Iterator[Finding]:
    """The same in this process, for as long as the template likes."""
    try:
        template = load_template(str(folder))
        template.encode(_QUESTION)
    except MillraceError as error:
        yield missing("template", error.message)
        return
    tools = "renders tools" if template.takes_tools else "renders no tools"
    family = template.family
    reasoning = "reasoning is told apart" if family.reasoning or family.channels else "no reasoning marks"
    kind = _read(folder / "config.json").get("model_type", "unknown")
    known = bundled_name(template.source)
    origin = f"the same as {known} of trl" if known else f"none of those that trl bundles (model_type {kind})"
    yield Finding("template", True, True, f"family {family.name}, {origin}: {tools}, {reasoning}")
    yield _sessions(folder, template)


def bundled_name(source: str) -> str | None:
    """The name under which trl bundles this template, for inference if it can be; None: it does not."""
    if (spec := find_spec("trl")) is None or spec.origin is None:  # found, not imported: that would load torch
        return None
    paths = (Path(spec.origin).parent / "chat_templates").glob("*.jinja")
    found = [path.stem for path in paths if path.read_text().strip() == source.strip()]
    return min(found, key=lambda name: (name.endswith("_training"), name), default=None)


def _sessions(folder: Path, template: ChatTemplate) -> Finding:
    stops = _stops(folder, template)
    calls = next_calls(template, stops)
    going = [call.follows for call in calls if not call.branch]
    broken = [f"{call.follows} ({call.branch})" for call in calls if call.branch]
    says = [f"goes on token for token after {', '.join(going)}"] if going else []
    if broken:
        says.append(f"is rendered anew after {', '.join(broken)}, see docs/agents.md")
    ends = " ".join(str(template.tokenizer.id_to_token(stop)) for stop in stops) or "no token"
    return Finding("sessions", not broken, False, f"the next call {'; it '.join(says)}; answers end with {ends}")


def _stops(folder: Path, template: ChatTemplate) -> list[int]:
    """The tokens that end an answer, as the engine has them; the tokenizer's own end if no file names one."""
    for name in ("generation_config.json", "config.json"):
        if (ids := _read(folder / name).get("eos_token_id")) is not None:
            return [one for one in (ids if isinstance(ids, list) else [ids]) if isinstance(one, int)]
    end = _read(folder / "tokenizer_config.json").get("eos_token")
    found = template.tokenizer.token_to_id(end["content"] if isinstance(end, dict) else str(end))
    return [] if found is None else [found]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


if __name__ == "__main__":
    most = psutil.Process().memory_info().vms + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2])))
    sys.stdout.buffer.write(msgspec.json.encode(list(findings_here(Path(sys.argv[1])))))
