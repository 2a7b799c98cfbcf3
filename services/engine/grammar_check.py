"""Compiles grammars; as a process of its own, finds out whether one can be compiled.

A small grammar can take minutes or gigabytes to compile, or overflow the stack and end its process: llguidance bounds steps, but not
all of the compilation. So each new grammar is compiled in this process first, by `grammars.py`, which kills it in time.

In: lines with a grammar, a JSON string each. Out: one line for the start, and one for each grammar: why it is refused, or empty, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import threading

import psutil
from llguidance import LLMatcher, LLTokenizer

_STACK_BYTES = 2**21
"""Smaller than that of the engine's threads: what is deep enough to break a stack does it here."""
_SHOWN_CHARACTERS = 500


def open_tokenizer(path: str, num_ids: int, end_ids: list[int]) -> LLTokenizer:
    """The tokenizer that grammars are compiled for: masks have `num_ids` tokens, and complete answers end with one of `end_ids`."""
    return LLTokenizer(path, n_vocab=num_ids, eos_token=end_ids)


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> tuple[LLMatcher, str]:
    """The compiled grammar, and why it cannot be used; empty if it can. Refused is also what allows no answer at all."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    problem = matcher.get_error()
    if not problem:
        trial = matcher.deep_copy()
        mask = trial.compute_bitmask()  # the first step of some grammars takes longer than their compilation
        problem = trial.get_error()
        if not problem and not any(mask):
            problem = "no answer can meet it"
    return matcher, problem.partition("\n<")[0][:_SHOWN_CHARACTERS]


def main(path: str, num_ids: int, end_ids: list[int], num_bytes: int) -> None:
    """Check grammars until standard input ends. `num_bytes`: the most memory that a grammar may take."""
    try:
        tokenizer = open_tokenizer(path, num_ids, end_ids)
    except ValueError as error:
        _say(str(error)[:_SHOWN_CHARACTERS])
        return
    limit = psutil.Process().memory_info().vms + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _say("")
    for line in sys.stdin:
        _say(compile_grammar(tokenizer, json.loads(line))[1])


def _say(text: str) -> None:
    sys.stdout.write(json.dumps(text) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    threading.stack_size(_STACK_BYTES)
    ends = [int(part) for part in sys.argv[3].split(",")]
    checking = threading.Thread(target=main, args=(sys.argv[1], int(sys.argv[2]), ends, int(sys.argv[4])))
    checking.start()
    checking.join()
