"""Conditions on the columns of a row, such as `pwatermark < 0.5 and similarity > 0.3`.

The text is parsed with Python's grammar, and a closed list of its nodes is translated to functions; nothing is
evaluated. Missing values and NaN are unknown, as in SQL: every comparison with them is, and a row is selected only if
the whole condition is true.
"""

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

from hypergrit_common.errors import UserError
from hypergrit_common.text import quoted

# Refuse conditions that cannot select by a row: they would drop all rows, or none.

ORDER: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
VALUES: Final = (ast.BinOp, ast.Call, ast.List, ast.Tuple)


def check_condition(node: ast.expr, text: str) -> None:
    """Raise UserError for a condition that has no column, or a part that fails or is unknown in every row."""
    if not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node)):
        raise UserError(f"read.where={text!r} names no column, so it is the same for all rows; name one")
    _check_truth(node, text)
    for part in ast.walk(node):
        match part:
            case ast.BoolOp(values=parts):
                for child in parts:
                    _check_truth(child, text)
            case ast.UnaryOp(op=ast.Not(), operand=child):
                _check_truth(child, text)
            case ast.Compare(left=left, ops=ops, comparators=others):
                for op, a, b in zip(ops, [left, *others], others, strict=False):
                    _check_comparison(op, a, b, text)


def _check_truth(node: ast.expr, text: str) -> None:
    """Raise UserError for a part that must be true or false, and is another value."""
    is_number = isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not)
    is_constant = isinstance(node, ast.Constant) and not isinstance(node.value, bool)
    is_column = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "column"
    if is_number or is_constant or (isinstance(node, VALUES) and not is_column):
        part = ast.unparse(node)
        raise UserError(f"read.where={text!r}: {part!r} is neither true nor false; compare it, such as {part} == 1")


def _check_comparison(op: ast.cmpop, left: ast.expr, right: ast.expr, text: str) -> None:
    part = ast.unparse(ast.Compare(left, [op], [right]))
    if isinstance(op, ast.Is | ast.IsNot):
        if not _is_none(right):
            raise UserError(f"read.where={text!r}: {part!r}: `is` compares with None only; use == or !=")
        return
    if _is_none(left) or _is_none(right):
        raise UserError(f"read.where={text!r}: {part!r} is unknown in every row; use `is None` or `is not None`")
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Constant) and not isinstance(right.value, str):
        raise UserError(f"read.where={text!r}: {part!r}: {ast.unparse(right)} is no list; write it in brackets")
    if isinstance(op, ORDER) and isinstance(left, ast.List | ast.Tuple) | isinstance(right, ast.List | ast.Tuple):
        raise UserError(f"read.where={text!r}: {part!r}: a list is neither smaller nor larger; use `in`")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


Expression = Callable[[Mapping[str, Any]], Any]
"""Computes a value from the columns of a row; None is unknown."""

MAX_CHARACTERS: Final = 10_000
MAX_DEPTH: Final = 50
BIG: Final = 1 << 63
INTEGER: Final = re.compile(r"\s*[+-]?\d{1,40}\s*", re.ASCII)
NUMBER: Final = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
EXAMPLE: Final = "pwatermark < 0.5 and similarity > 0.3"
ALLOWED: Final = (
    "columns, numbers, texts, None, True, False, < <= > >= == !=, in, is None, and, or, not, + - * / %, len(), "
    "lower(), "
    'and column("any name")'
)


class WhereError(ValueError):
    """A row for which the condition cannot be computed; the message is the reason."""


class Where:
    """A compiled condition; `columns` are the names in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.columns: dict[str, None] = {}
        self._value = self._compile(_parse(text), 0)

    def __call__(self, record: Mapping[str, Any]) -> bool:
        """Return True if a row is selected. Raises WhereError."""
        return _truth(self._value(record), self.text) is True

    def __reduce__(self) -> tuple[type["Where"], tuple[str]]:
        return Where, (self.text,)

    def check_use(self) -> None:
        """Raise UserError for a condition that drops all rows, or none; those of finished outputs are accepted."""
        check_condition(_parse(self.text), self.text)

    def check(self, path: str, names: Collection[str]) -> None:
        """Raise UserError if a file with the columns `names` lacks one that the condition uses."""
        for name in self.columns:
            if name not in names:
                close = difflib.get_close_matches(name, names, 1) or [x for x in names if x.lower() == name.lower()]
                hint = f"did you mean {close[0]!r}?" if close else f"it has {quoted(names)}"
                raise UserError(f"{path} has no column {name!r}, which read.where={self.text!r} uses; {hint}")

    def _compile(self, node: ast.expr, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise UserError(f"where is nested more than {MAX_DEPTH} deep; shorten it")

        def inner(child: ast.expr) -> Expression:
            return self._compile(child, depth + 1)

        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return lambda _: value
            case (
                ast.Name(id=name)
                | ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[])
            ):
                self.columns[name] = None
                return lambda record: _plain(record.get(name))
            case ast.Call(func=ast.Name(id="len" | "lower" as function), args=[argument], keywords=[]):
                return _function(function, inner(argument), ast.unparse(argument))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                values = [inner(item) for item in items]
                return lambda record: [value(record) for value in values]
            case ast.BoolOp(op=op, values=parts):
                return _all_or_any([(inner(part), ast.unparse(part)) for part in parts], isinstance(op, ast.Or))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return _not(inner(part), ast.unparse(part))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=part):
                sign = -1 if isinstance(op, ast.USub) else 1
                return _arithmetic(operator.mul, lambda _: sign, inner(part), "", ast.unparse(part))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                texts = ast.unparse(left), ast.unparse(right)
                return _arithmetic(ARITHMETIC[type(op)], inner(left), inner(right), *texts)
            case ast.Compare(left=left, ops=ops, comparators=others):
                operands = [left, *others]
                pairs = [
                    (_comparison(op, inner(a), inner(b), ast.unparse(a), ast.unparse(b)), ast.unparse(node))
                    for op, a, b in zip(ops, operands, others, strict=False)
                ]
                return _all_or_any(pairs, is_or=False)
        raise UserError(f"where={self.text!r}: {ast.unparse(node)!r} is not allowed; use {ALLOWED}")


def _parse(text: str) -> ast.expr:
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it has {len(text)} characters, more than {MAX_CHARACTERS}")
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise UserError(f"where={text[:200]!r} is no condition ({reason}); write it like {EXAMPLE!r}") from None


def _plain(value: Any) -> Any:
    """Return a number, text, list, dictionary or None for the value of a column; a date becomes text, NaN None."""
    match value:
        case float() if math.isnan(value):
            return None
        case None | bool() | int() | float() | str() | list() | dict():
            return value
        case bytes():
            return value.decode(errors="replace")
        case Decimal():
            return float(value)
        case _:
            return str(value)


def _held(text: str) -> float | int | None:
    """Return the number that a text holds: integers exactly, as parquet has them; None if it holds none."""
    with suppress(ValueError):
        return int(text) if INTEGER.fullmatch(text) else float(text)
    return None


def _number(value: Any, text: str) -> float | int | None:
    """Return a number or the one that a text holds; None for an empty text. `text` is the expression of the value."""
    if isinstance(value, str):
        if not value.strip():
            return None
        held = _held(value)
        if held is None:
            raise WhereError(f"{text} is {value[:80]!r}, not a number")
        value = held
    if not isinstance(value, int | float):
        raise WhereError(f"{text} is a {type(value).__name__}, not a number")
    if isinstance(value, int) and abs(value) >= BIG:
        try:
            value = float(value)
        except OverflowError:
            return None
    return None if math.isnan(value) else value


def _truth(value: Any, text: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):  # in CSV
        return value.lower() == "true"
    raise WhereError(f"{text} is {str(value)[:80]!r}, not true or false")


def _all_or_any(parts: list[tuple[Expression, str]], is_or: bool) -> Expression:
    def value(record: Mapping[str, Any]) -> bool | None:
        result: bool | None = not is_or
        for part, text in parts:
            found = _truth(part(record), text)
            if found is is_or:
                return is_or
            result = None if found is None else result
        return result

    return value


def _not(part: Expression, text: str) -> Expression:
    def value(record: Mapping[str, Any]) -> bool | None:
        found = _truth(part(record), text)
        return None if found is None else not found

    return value


def _function(name: str, argument: Expression, text: str) -> Expression:
    kinds = (str,) if name == "lower" else (str, list, dict)

    def value(record: Mapping[str, Any]) -> Any:
        found = argument(record)
        if found is None:
            return None
        if not isinstance(found, kinds):
            raise WhereError(f"{text} is a {type(found).__name__}, of which {name}() is not known")
        return found.lower() if isinstance(found, str) and name == "lower" else len(found)

    return value


def _arithmetic(
    operate: Callable[[Any, Any], Any], left: Expression, right: Expression, left_text: str, right_text: str
) -> Expression:
    def value(record: Mapping[str, Any]) -> Any:
        a, b = left(record), right(record)
        if a is None or b is None:
            return None
        a, b = _number(a, left_text), _number(b, right_text)
        try:
            return None if a is None or b is None else _plain(operate(a, b))
        except (ZeroDivisionError, OverflowError):
            return None

    return value


def _comparison(op: ast.cmpop, left: Expression, right: Expression, left_text: str, right_text: str) -> Expression:
    are_columns = not any(text.startswith(("'", '"')) for text in (left_text, right_text))

    def value(record: Mapping[str, Any]) -> bool | None:
        a, b = left(record), right(record)
        match op:
            case ast.Is() | ast.IsNot():
                if right_text != "None":
                    raise WhereError(f"`is` compares with None only, not with {right_text}")
                return (a is None) is isinstance(op, ast.Is)
            case ast.In() | ast.NotIn():
                if a is None or b is None:
                    return None
                if not isinstance(b, list | dict) and not (isinstance(a, str) and isinstance(b, str)):
                    raise WhereError(f"{right_text} is a {type(b).__name__}, not a list or text")
                found = a in b if isinstance(b, str) else any(_equal(a, item) for item in b)
                return found is isinstance(op, ast.In)
        if a is None or b is None:
            return None
        if type(op) in (ast.Eq, ast.NotEq):
            return (_equal(a, b) or (are_columns and _equal_numbers(a, b))) is isinstance(op, ast.Eq)
        if not (isinstance(a, str) and isinstance(b, str)) or (NUMBER.fullmatch(a) and NUMBER.fullmatch(b)):
            a, b = _number(a, left_text), _number(b, right_text)
        return None if a is None or b is None else bool(COMPARISONS[type(op)](a, b))

    return value


def _equal(a: Any, b: Any) -> bool:
    """Compare two values; a text equals the number, or True or False, that it holds."""
    for text, number in ((a, b), (b, a)):
        if isinstance(text, str) and isinstance(number, bool):
            return text.lower() == str(number).lower()
        if isinstance(text, str) and isinstance(number, int | float) and not isinstance(number, bool):
            return _held(text) == number
    return bool(a == b)


def _equal_numbers(a: Any, b: Any) -> bool:
    """Return True for two texts that hold the same number, such as 640 and 640.0."""
    if not (isinstance(a, str) and isinstance(b, str) and NUMBER.fullmatch(a) and NUMBER.fullmatch(b)):
        return False
    try:
        return Decimal(a.strip()) == Decimal(b.strip())
    except ArithmeticError:
        return False
