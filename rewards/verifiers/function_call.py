"""The worker's side of `function`: imports the user's reward function and calls it as trl's GRPOTrainer does."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

_ABSENT = frozenset({"completion_ids", "environments"})
_VARIADIC = frozenset({inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL})


def worker(config: Mapping[str, str]) -> Callable[[Mapping[str, list[Any]]], Any]:
    """A function from columns to rewards, both as JSON. Raises Exception: the path does not exist, or is not callable."""
    module, _, name = config["path"].partition(":")
    function = reduce(getattr, name.split("."), _module(module, Path(config["folder"])))
    if not callable(function):
        raise TypeError(f"{name} is {type(function).__name__}, not a function")
    parameters = inspect.signature(function).parameters.values()
    variadic = {parameter.name for parameter in parameters if parameter.kind in _VARIADIC}
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty} - variadic
    if lacking := required & _ABSENT:
        raise TypeError(f"{name} needs {min(lacking)}, which only a trainer has")
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {parameter.name for parameter in parameters} - variadic
    runner = asyncio.Runner()

    def call(columns: Mapping[str, list[Any]]) -> Any:
        given: dict[str, Any] = {**columns, "trainer_state": None, "log_extra": _ignore, "log_metric": _ignore}
        given = {key: value for key, value in given.items() if takes_all or key in named}
        # No answer of this batch has the column: pass None for all, because other batches may have it.
        nothing = [None] * len(columns["completions"])
        given |= dict.fromkeys(required - given.keys(), nothing)
        rewards = function(**given)
        if inspect.isawaitable(rewards):
            rewards = runner.run(_awaited(rewards))
        return _plain(rewards)

    return call


def _module(name: str, folder: Path) -> Any:
    if not name.endswith(".py"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        return importlib.import_module(name)
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up in sys.modules. A module that is already there stays.
    sys.modules.setdefault(path.stem, module)
    # Compiled here, because Python's cache misses a change within a second that keeps the file's length.
    exec(compile(path.read_bytes(), path, "exec"), module.__dict__)  # noqa: S102 the user's own reward function
    return module


async def _awaited(rewards: Any) -> Any:
    return await rewards


def _ignore(*_: object, **__: object) -> None:
    """Ignore what trl would log."""


def _plain(rewards: Any) -> Any:
    """Arrays and tensors become lists of numbers or bools, as in trl. Any other value becomes the name of its type."""
    found = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    if isinstance(found, list | tuple):
        return [_number(reward) for reward in found]
    return {"kind": type(rewards).__name__}


def _number(reward: Any) -> Any:
    if reward is None or isinstance(reward, str | bool | int | float):
        return reward
    if hasattr(reward, "item"):
        return reward.item()
    if hasattr(reward, "__float__"):
        return float(reward)
    return f"<{type(reward).__name__}>"
