"""Validates rendered manifests, strictly: `python deploy/helm/validate.py FILE...`, in the environment that deploy/helm/check makes.

In: files of manifests. Out: what does not fit the API's schemas, by file, kind, name and place; status 1 if anything does not.
Unknown fields are mistakes. Each manifest is tried with the oldest Kubernetes of the chart and with the newest one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = ("1.30", "1.37")
MODELS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}


def problems_of(manifest: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a manifest."""
    if (module := MODELS.get(manifest["apiVersion"])) is not None:
        yield from _of_model(manifest, module)
        return
    import kubernetes_validate as kubernetes  # type: ignore[import-not-found] # noqa: PLC0415 only in .helm

    for version in KUBERNETES:
        try:
            kubernetes.validate(manifest, version, strict=True)
        except kubernetes.ValidationError as error:
            yield f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes.SchemaNotFoundError as error:
            yield f"Kubernetes {version}: {error.message}"


def _of_model(manifest: dict[str, Any], module: str) -> Iterator[str]:
    """Of a custom resource. Its model drops fields that it does not know: what it gives back must be what it got."""
    model = getattr(importlib.import_module(module), manifest["kind"])
    try:
        read = model.model_validate(manifest).model_dump(by_alias=True, exclude_unset=True, mode="json")
    except ValueError as error:
        yield str(error)
        return
    yield from (f"{place} is unknown" for place in _lost(manifest["spec"], read["spec"], "spec"))


def _lost(given: Any, read: Any, place: str) -> Iterator[str]:
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(read, dict) or name not in read:
                yield f"{place}.{name}"
            else:
                yield from _lost(value, read[name], f"{place}.{name}")
    elif isinstance(given, list):
        for index, value in enumerate(given):
            yield from _lost(value, read[index], f"{place}[{index}]")


def main(files: list[str]) -> int:
    """Validate every manifest of the files."""
    num, num_wrong = 0, 0
    for file in files:
        for manifest in yaml.safe_load_all(Path(file).read_text()):
            if manifest is None:
                continue
            num += 1
            for problem in problems_of(manifest):
                num_wrong += 1
                print(f"{file}: {manifest['kind']} {manifest['metadata']['name']}: {problem}")
    print(
        f"{num} manifests of {len(files)} files, each for Kubernetes {' and '.join(KUBERNETES)}: {num_wrong} problems"
    )
    return 1 if num_wrong or not num else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
