"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HomeOption = Annotated[Path, typer.Option("--home", help="The folder that holds settings, log, database and weights.")]
DEFAULT_HOME = Path("runs/home")
