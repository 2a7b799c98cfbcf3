"""The lock of the extra `torch`, without what slim.txt holds: on standard input, in full. Writes torch-cuda.txt and torch-cpu.txt.

The CPU wheels stand in an index of torch's own, which this project does not name. Their hashes, for Python 3.11:
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CPU_HASHES = (
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64
    "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64
)
OF_CUDA = ("cuda-", "nvidia-", "triton")


def entries(lock: str) -> dict[str, str]:
    """Each requirement with its hashes, by name."""
    found = re.split(r"\n(?=[a-z0-9])", lock.strip())
    return {one.partition("==")[0].partition("[")[0]: one for one in found if one}


def main() -> None:
    """Write both files into the folder of the argument."""
    folder = Path(sys.argv[1])
    slim = entries((folder / "slim.txt").read_text())
    cuda = {name: entry for name, entry in entries(sys.stdin.read()).items() if name not in slim}
    version = cuda["torch"].partition("==")[2].split()[0]
    cpu = {name: entry for name, entry in cuda.items() if not name.startswith(OF_CUDA)}
    cpu["torch"] = " \\\n    ".join([f"torch=={version}+cpu", *(f"--hash=sha256:{one}" for one in CPU_HASHES)])
    for name, held in (("torch-cuda.txt", cuda), ("torch-cpu.txt", cpu)):
        (folder / name).write_text("\n".join(held[key] for key in sorted(held)) + "\n")


if __name__ == "__main__":
    main()
