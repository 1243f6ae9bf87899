"""Refuse conditions that cannot select by a row: they would drop all rows, or none."""

import ast
from typing import Final

from common.errors import UserError

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
