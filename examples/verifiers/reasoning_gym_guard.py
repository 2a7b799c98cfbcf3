"""Limits the code that the scorers of reasoning-gym evaluate. Some scorers `eval` the model's answer, or SymPy does.

Literals and arithmetic are allowed. In the output of SymPy's parser, mathematical functions by name are allowed too. All other
code raises before any of it runs, and the scorers treat an exception as a wrong answer.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from typing import Any

_HARMLESS = (
    *(ast.Expression, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Name, ast.Call),
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare),
    *(ast.unaryop, ast.operator, ast.boolop, ast.cmpop, ast.expr_context),
)
_FUNCTIONS = frozenset((
    "Symbol", "Integer", "Float", "Rational", "Abs", "Add", "Mul", "Pow", "Max", "Min", "sign", "sqrt", "cbrt", "root",
    "exp", "log", "ln", "factorial", "factorial2", "binomial", "gamma", "sin", "cos", "tan", "cot", "sec", "csc",
    "asin", "acos", "atan", "acot", "asec", "acsc", "sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "acoth",
    "erf", "erfc", "erfi", "Si", "Ci", "Shi", "Chi", "Ei", "li", "Piecewise", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And",
    "Or", "Not",
))  # fmt: skip
_TEXT = re.compile(r"[\w.+-]*")
"""A name or a number: `Symbol('x')`, `Float('1.5')`. SymPy's functions would parse any other text as code."""


def guard() -> None:
    """Replace the functions that evaluate. Call it after importing reasoning-gym, in a process only for its scorers."""
    from sympy.parsing import sympy_parser  # type: ignore[import-untyped]  # noqa: PLC0415 only workers pay for SymPy

    evaluate = sympy_parser.eval_expr

    def checked(code: object, local_dict: dict[str, Any], global_dict: dict[str, Any]) -> Any:
        _check(code, _FUNCTIONS)
        return evaluate(code, local_dict, global_dict)

    sympy_parser.eval_expr = checked
    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym."):
            # A module's own `eval` takes precedence over the built-in one.
            vars(module)["eval"] = arithmetic


def arithmetic(text: object, *_: Mapping[str, Any]) -> Any:
    """The value of an expression of literals and operators.

    Raises:
        ValueError, SyntaxError, NameError: it is something else.
    """
    tree = _check(text, frozenset())
    return eval(compile(tree, "<expression>", "eval"), {"__builtins__": {}})  # noqa: S307 only literals are left in it


def _check(code: object, functions: frozenset[str]) -> ast.Expression:
    if not isinstance(code, str):
        raise ValueError(f"{type(code).__name__} is not the text of an expression")  # noqa: TRY004 as for all refusals
    tree = ast.parse(code.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _HARMLESS):
            raise ValueError(f"{type(node).__name__} is not allowed in an expression")  # noqa: TRY004 as above
        if functions and isinstance(node, ast.Constant) and not _TEXT.fullmatch(str(node.value)):
            raise ValueError("a text that is neither a name nor a number")
        if isinstance(node, ast.Call) and (
            node.keywords or not isinstance(node.func, ast.Name) or node.func.id not in functions
        ):
            raise ValueError("a call of something that is not a mathematical function")
    return tree
