"""Finds answers that are worthless without asking a judge. Pure.

Some phrases open an answer and say nothing, but fool some judges ("One Token to Fool LLM-as-a-Judge", 2025).
"""

# ruff: noqa: RUF001 these are what models write, in their own punctuation

from __future__ import annotations

import unicodedata

from rewards.judges.prompt import without_thoughts

_MAX_CHARS = 300
MASTER_KEYS = (
    " ", ".", ",", ":", "...", "?", "---", "Thought process:", "Let's solve this problem step by step.",
    "Let's solve this step by step", "Let's think step by step.", "Let me think about this.",
    "Let me work through this carefully.", "Solution", "Solution:", "Answer:", "The answer is:", "Final answer:",
    "The final answer is", "Sure, here is the answer:", "Certainly! Here is the solution:", "Of course! Here you go:",
    "To solve this problem, we need to", "First, let's break this down.", "Step 1:", "Explanation:", "Reasoning:",
    "Here is my response:", "**Solution:**", "## Answer", "解", "解：", "答案：", "思考过程：", "让我们一步一步地思考。", "解答", "かいせつ",
    "解説：", "ステップごとに考えましょう。", "풀이:", "Respuesta", "Solución:", "Pensemos paso a paso.", "Réponse :",
    "Réfléchissons étape par étape.", "Lösung:", "Denken wir Schritt für Schritt.", "Risposta:", "Resposta:",
    "Решение:", "Давайте подумаем шаг за шагом.", "الحل:", "हल:", "Çözüm:",
)  # fmt: skip
"""`millrace judge admit` shows them to a judge as if they were answers."""

_MORE_OPENERS = (
    "Sure, here you go:", "Here is the answer:", "Here's the answer:", "Here's the solution:",
    "Here is the solution:", "Let's begin.", "Let's break this down.", "Let's break it down step by step.",
    "Let's think about this step by step", "Let me solve this step by step", "Let us solve this problem step by step",
    "Let us think step by step", "We need to solve this problem.", "To answer this question,", "Thinking:",
    "Thought:", "Analysis:", "Step by step solution:", "Final answer", "让我们一步步思考", "分析：", "Respuesta final:",
    "Antwort:", "Ответ:", "Solução:", "Soluzione:", "Solution :",
)  # fmt: skip


def worthless(text: str, reference: str | None = None) -> str:
    """Why an answer is worthless: empty, symbols only, or opening phrases only. An empty text if it is not. An answer equal to the reference is never worthless."""
    answer = without_thoughts(text)
    if not answer:
        return "empty"
    if reference is not None and answer == reference.strip():
        return ""
    letters = _letters(answer)
    if not letters:
        return "symbols only"
    if len(answer) > _MAX_CHARS:
        return ""
    while opener := next((opener for opener in _OPENERS if letters.startswith(opener)), ""):
        letters = letters[len(opener) :]
    return "" if letters else "an opening phrase only"


def _letters(text: str) -> str:
    """Only letters, marks and digits, case-folded, so that punctuation and formatting do not matter."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if unicodedata.category(char)[0] in "LMN")


_OPENERS = sorted({_letters(phrase) for phrase in (*MASTER_KEYS, *_MORE_OPENERS)} - {""}, key=len, reverse=True)
