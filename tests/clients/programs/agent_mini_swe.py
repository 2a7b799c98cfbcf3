"""mini-swe-agent with its default model class, a local environment in a folder of its own, and the prompts of its `mini` command."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import minisweagent.config
import yaml
from agent import KEY, MODEL, QUESTIONS, URL, tell
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel


def main() -> None:
    """Every question is a run."""
    content: Any = yaml.safe_load((Path(minisweagent.config.__file__).parent / "mini.yaml").read_text())
    prompts = {name: content["agent"][name] for name in ("system_template", "instance_template")}
    options = {**content["model"], "model_kwargs": {"drop_params": True, "api_base": URL, "api_key": KEY}}
    answers = []
    for question in QUESTIONS:
        with tempfile.TemporaryDirectory() as folder:
            model = LitellmModel(model_name=f"openai/{MODEL}", cost_tracking="ignore_errors", **options)
            agent = DefaultAgent(model, LocalEnvironment(cwd=folder, **content["environment"]), **prompts)
            answers.append(agent.run(question)["submission"])
    tell(answers)


if __name__ == "__main__":
    main()
