"""What the agents share: their questions, their tool, and how they tell what they said at last.

In: see `cases.py`, but the key is that of a session; MILLRACE_QUESTIONS, a JSON list; MILLRACE_API. Out: {"answers": [...]}.
"""

from __future__ import annotations

import json
import os
import sys

URL, MODEL, KEY = os.environ["MILLRACE_URL"], os.environ["MILLRACE_MODEL"], os.environ["MILLRACE_KEY"]
API = os.environ["MILLRACE_API"]
QUESTIONS = json.loads(os.environ["MILLRACE_QUESTIONS"])
SYSTEM = "You help guests."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_DEGREES = {"Paris": 21, "Rome": 24, "Oslo": 9, "Bern": 14, "Graz": 17, "Nice": 23}


def weather_in(city: str) -> str:
    """What the tool says."""
    return json.dumps({"city": city, "degrees": _DEGREES[city]})


def tell(answers: list[str]) -> None:
    """Print what was answered to each question."""
    sys.stdout.write(json.dumps({"answers": answers}) + "\n")
