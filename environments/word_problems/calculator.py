"""Calculator of whole numbers, for policies that write the expression."""

import ast
import operator
from collections.abc import Callable

MAX_CHARS = 200  # of an expression
MAX_DIGITS = 18  # of a number, so that a product is quick
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
}


def calculate(expression: str) -> int:
  """Returns the value of an expression of whole numbers, + - * and brackets.

  Raises `ValueError`, with a text for the policy, for anything else.
  """
  if len(expression) > MAX_CHARS:
    raise ValueError(f"the expression has more than {MAX_CHARS} characters")
  try:
    tree = ast.parse(expression.strip(), mode="eval")
    return _value(tree.body)
  except (SyntaxError, MemoryError, RecursionError) as error:
    raise ValueError(
      "this is no expression; write whole numbers with + - * and brackets, "
      "such as (7 - 3) * 2"
    ) from error


def _value(node: ast.expr) -> int:
  match node:
    case ast.Constant(value=int() as value) if not isinstance(value, bool):
      pass
    case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
      value = _OPERATORS[type(op)](_value(left), _value(right))
    case ast.UnaryOp(op=ast.USub(), operand=operand):
      value = -_value(operand)
    case _:
      raise ValueError("only whole numbers, + - * and brackets are allowed")
  if abs(value) >= 10**MAX_DIGITS:
    raise ValueError(f"a number has more than {MAX_DIGITS} digits")
  return value
