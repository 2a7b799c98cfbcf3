"""Two answers where one was asked, an answer that is taken back, and honest answers that name other values all the same."""

from __future__ import annotations

_BETWEEN = (
    " | ", " || ", " / ", "/", ", ", "; ", " or ", " and ", " & ", ", or ", ", maybe ", " or maybe ", " (or ", " [or ", " vs ", " versus ",
    " xor ", " and/or ", ". Or ", ". Alternatively, ", "; alternatively ", " (alternatively ", ". Or it could be ", ". It could also be ",
    " but could be ", " but might be ", ", possibly ", ", perhaps ", " unless it is ", ", no wait, ", ". Wait, actually ", "? or ", "? ",
    " \u2228 ", " \\lor ", " \\vee ", " \\text{ or } ", " oder ", " ou ", " o ", " eller ", " else ", " otherwise ", ", otherwise ", ". Another answer is ",
    ". Another possibility is ", " as well as ", " along with ", " plus or minus ", "\n", "\nor ", "\n\n", " ", "  ", " \u2016 ", " nor ", " through ",
    " to ", " \u2192 ", " aka ", " if x > y, else ", ", or in other words ", " (", " [", ". ",
)  # fmt: skip
_LEADS = ("", "The answer is ", "Answer: ", "I think the answer is ", "**Answer:** ", "The final answer is ")
_AROUND = (
    "either {} or {}", "between {} and {}", "one of {}, {}", "any of {} and {}", "neither {} nor {}", "[{}, {}]", "({}, {})", "{{{}, {}}}",
    "\\boxed{{{}}}\\boxed{{{}}}", "\\boxed{{{}}} or \\boxed{{{}}}", "\\boxed{{{}}} or {}", "\\boxed{{{}}} | {}", "\\boxed{{{} \\text{{ or }} {}}}",
    "The answer is {}. The answer is {}.", "Answer: {}\nAnswer: {}", "*{}* or *{}*", "**{}** / **{}**", "the result is {} and the answer is {}",
)  # fmt: skip
_TAKEN_BACK = (
    "The answer is not {}", "The answer isn't {}", "The answer is definitely not {}", "The answer can't be {}", "not {}", "The answer is anything but {}",
    "It is false that the answer is {}", "I doubt that the answer is {}", "The answer is unlikely to be {}", "The answer is {} is wrong",
    "The answer is {} or not", "The answer is {} if it is not", "\\boxed{{not {}}}",
)  # fmt: skip
_BOUNDS = (
    "The answer is {} or more", "The answer is {} or less", "The answer is {} at most", "The answer is {}+", "The answer is {} \u00b1 1", "at least {}",
    "The answer is {} +/- 1", "The answer is {} \\pm 1", "\\boxed{{{}\\pm 1}}", "The answer is {} give or take 1", "less than {}", "The answer is around {} or so",
    "The answer is {}..{}", "The answer is {}...{}", "The answer is {} \u2013 {}", "The answer is {}~{}",
)  # fmt: skip

HONEST_NUMBERS = (
    "42", "The answer is 42.", "**42**", "#### 42", "\\boxed{42}", "The answer is $42$.", "So 40 + 2 = 42. The answer is 42.", "The answer is 42 apples.",
    "The answer is 42 (rounded).", "The answer is 42, because 6*7=42.", "The answer is 42, not 43.", "Answer: 42\n", "The answer is **42**.",
    "The answer is \\boxed{42}.", "First 6, then 7. The answer is 42", "The answer is 42; each of the 7 has 6.", "The answer is 42 dollars and that leaves 8.",
    "Tom has 6 bags of 7. The total is 42. #### 42", "The answer is approximately 42.", "The answer is 42 and Tom has 3 left.",
    "The answer is 42, so Tom needs 3 more.", "The answer is 42 or, in words, forty-two.", "Step 1: 6. Step 2: 7. Answer: 42", "The answer is 42 (6 times 7).",
    "The answer is 42 (since 50 - 8 = 42)", "The answer is 42 = 6*7", "The answer is 42.\n\n1. Six bags.\n2. Seven in each.",
)  # fmt: skip
HONEST_LETTERS = (
    "A", "(A)", "A.", "A)", "**A**", "The answer is A.", "The answer is (A).", "Answer: A", "\\boxed{\\text{A}}", "The answer is A because B is wrong.",
    "The answer is A, not B.", "The answer is A. B is wrong because it is red.", "B is wrong. The answer is A.", "A. Paris", "The answer is A: Paris",
    "Both B and C are wrong, so the answer is A.", "The answer is A, since B and C are too small.", "The answer is A rather than B.",
    "I first thought B, or C. The answer is A.", "The answer is A; B, C and D are wrong.", "The answer is **A**, because B or C would be red.",
    "The answer is A \u2013 Paris", "The answer is A over B", "The answer is A, as B is wrong.", "A. Paris. B would be Rome.",
)  # fmt: skip


def hedged(first: str, second: str) -> list[str]:
    """Answers that name `first` and `second`, in all places where an answer may stand."""
    lists = [f"{lead}{first}{between}{second}" for lead in _LEADS for between in _BETWEEN]
    return lists + [around.format(first, second) for around in _AROUND]


def taken_back(value: str) -> list[str]:
    """Answers that name a value and do not stand by it."""
    return [shape.format(value) for shape in _TAKEN_BACK]


def bounded(value: str, other: str) -> list[str]:
    """Bounds and ranges where a number was asked."""
    return [shape.format(value, other) for shape in _BOUNDS]
