"""SGLang's side of `/pull_weights`, rebuilt from what its source does: one host, no GPU.

Sources: sgl-project/sglang `python/sglang/srt/weight_sync/local_checkpoint.py` (reading a stream; not in release 0.5.23), and of that
release `entrypoints/http_server.py` and `managers/io_struct.py` (the other routes, bodies, status codes). What it keeps of them: the newest full version is looked for
from the target backwards; a full one is copied and prunes; a delta must name the applied version as its base; the index
says which files there are; the marker is taken away before the first byte is patched, in place, and comes back when all
checksums hold; any failure is a 400 with the reason; a reload reads the local checkpoint.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import zstandard
from blake3 import blake3
from fastapi import Body, FastAPI, Response
from fastapi.responses import JSONResponse

from weights.tensors import Tensors, read_safetensors

INDEX = "model.safetensors.index.json"


class FakeSglang:
    """Attributes:
    calls: paths, in the order they were asked for.
    serves: the weights that are loaded.
    fails_at: a path that answers 400 instead of doing its work.
    dies_after: how many tensors a pull patches before it dies; None: it lives.
    """

    def __init__(self, model_path: Path) -> None:
        self.calls: list[str] = []
        self.serves: Tensors = read_safetensors(model_path)
        self.label = "default"
        self.is_paused = False
        self.fails_at: str | None = None
        self.dies_after: int | None = None
        self._model_path = model_path

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/pull_weights")
        def pull_weights(
            local_checkpoint_dir: Annotated[str, Body()],
            source_dir: Annotated[str, Body()],
            target_version: Annotated[int, Body()],
        ) -> JSONResponse:
            self.calls.append("/pull_weights")
            try:
                self.pull(Path(local_checkpoint_dir), Path(source_dir), target_version)
            except (RuntimeError, OSError, LookupError, NotImplementedError) as error:
                return JSONResponse({"success": False, "message": repr(error)}, 400)
            return JSONResponse({"success": True, "message": "Success."})

        @app.post("/pause_generation")
        def pause_generation(mode: Annotated[str, Body(embed=True)] = "abort") -> JSONResponse:
            if mode not in {"abort", "retract", "in_place"}:
                return JSONResponse({"detail": mode}, 422)
            return self._done(f"/pause_generation {mode}", is_paused=True)

        @app.post("/continue_generation")
        def continue_generation(torch_empty_cache: Annotated[bool, Body(embed=True)] = True) -> JSONResponse:
            assert torch_empty_cache
            return self._done("/continue_generation", is_paused=False)

        @app.post("/flush_cache")
        def flush_cache() -> Response:
            self.calls.append("/flush_cache")
            return Response("Cache flushed.\n")

        @app.post("/update_weights_from_disk")
        def update_weights_from_disk(
            model_path: Annotated[str, Body()], weight_version: Annotated[str | None, Body()] = None
        ) -> JSONResponse:
            self.calls.append("/update_weights_from_disk")
            if self.fails_at == "/update_weights_from_disk":
                return JSONResponse({"success": False, "message": "out of memory", "num_paused_requests": 0}, 400)
            self.serves = read_safetensors(Path(model_path))
            self.label = weight_version or self.label
            return JSONResponse({"success": True, "message": "Succeeded", "num_paused_requests": 0})

        @app.get("/model_info")
        def model_info() -> JSONResponse:
            return JSONResponse({"model_path": str(self._model_path), "weight_version": self.label})

        return app

    def _done(self, call: str, *, is_paused: bool) -> JSONResponse:
        self.calls.append(call)
        self.is_paused = is_paused
        return JSONResponse({"message": "done", "status": "ok"})

    def pull(self, local: Path, source: Path, target: int) -> None:
        """Bring the checkpoint in `local` to number `target`."""
        (local / ".weight_sync").mkdir(parents=True, exist_ok=True)
        applied = applied_version(local)
        if target == 0 and applied:
            applied = None
        start = target
        while start > (applied or 0) and _is_delta(_folder(source, start)):
            start -= 1
        if applied is None or start > applied:
            _copy_full(self._model_path if start == 0 else _folder(source, start), local, start)
        else:
            start = applied
        for version in range(start + 1, target + 1):
            self._apply_delta(local, _folder(source, version))

    def _apply_delta(self, local: Path, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        metadata = index["metadata"]
        if (applied := applied_version(local)) != int(metadata["base_version"]):
            raise RuntimeError(f"out-of-order delta: local at {applied}, delta builds on {metadata['base_version']}")
        if metadata["compression_format"] != "zstd" or metadata["delta_encoding"] != "xor":
            raise NotImplementedError(str(metadata))
        places = _places(local)
        work = list(_work(folder, index["weight_map"]))
        if work:
            _marker(local).unlink(missing_ok=True)
        mismatches = []
        for number, (name, compressed, checksum) in enumerate(work):
            if number == self.dies_after:
                raise OSError("killed")
            path, offset, size = places[name]
            whole = bytearray(path.read_bytes())
            region = np.frombuffer(whole, dtype=np.uint8)[offset : offset + size]
            difference = np.frombuffer(zstandard.ZstdDecompressor().decompress(compressed), dtype=np.uint8)[:size]
            region[: difference.size] ^= difference
            path.write_bytes(whole)
            if _digest(metadata["checksum_format"], region[: difference.size].tobytes()) != checksum:
                mismatches.append(name)
        if mismatches:
            raise RuntimeError(f"checksum mismatch for {len(mismatches)} tensors: {sorted(mismatches)}")
        _mark(local, int(metadata["version"]))


def applied_version(local: Path) -> int | None:
    """What the marker says."""
    marker = _marker(local)
    return int(json.loads(marker.read_text())["version"]) if marker.exists() else None


def _marker(local: Path) -> Path:
    return local / ".weight_sync" / "state.json"


def _mark(local: Path, version: int) -> None:
    _marker(local).write_text(json.dumps({"version": f"{version:06d}"}))


def _folder(source: Path, version: int) -> Path:
    return source / f"weight_v{version:06d}"


def _is_delta(folder: Path) -> bool:
    if not folder.is_dir():
        raise FileNotFoundError(f"published weight version missing: {folder}")
    if (folder / INDEX).exists():
        return "delta_encoding" in json.loads((folder / INDEX).read_text()).get("metadata", {})
    if [path.name for path in folder.glob("*.safetensors")] != ["model.safetensors"]:
        raise FileNotFoundError(f"published weight index missing: {folder}")
    return False


def _copy_full(source: Path, local: Path, version: int) -> None:
    _marker(local).unlink(missing_ok=True)
    files = [path for path in source.iterdir() if path.is_file()]
    for path in files:
        shutil.copy2(path, local / path.name)
    for path in local.iterdir():
        if path.is_file() and path.name not in {file.name for file in files}:
            path.unlink()
    _mark(local, version)


def _open(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def _work(folder: Path, weight_map: dict[str, str]) -> Iterator[tuple[str, bytes, str | None]]:
    """(tensor, compressed difference, checksum of its new bytes)."""
    for file in sorted(set(weight_map.values())):
        header, content = _open(folder / file)
        checksums = header.pop("__metadata__", {})
        if header.keys() != {name for name, holds in weight_map.items() if holds == file}:
            raise RuntimeError(f"delta tensor mapping mismatch in {file}")
        for name, info in header.items():
            begin, end = info["data_offsets"]
            yield name, content[begin:end], checksums.get(name)


def _places(local: Path) -> dict[str, tuple[Path, int, int]]:
    places = {}
    for path in local.glob("*.safetensors"):
        start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        for name, info in _open(path)[0].items():
            if name != "__metadata__":
                begin, end = info["data_offsets"]
                places[name] = (path, start + begin, end - begin)
    return places


def _digest(algorithm: str, content: bytes) -> str:
    if algorithm == "adler32":
        return f"{zlib.adler32(content):08x}"
    if algorithm == "blake3":
        return blake3(content).hexdigest()
    raise KeyError(f"unknown checksum algorithm {algorithm!r}")
