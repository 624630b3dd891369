"""Compares and matches text as MySQL's utf8mb4_0900_ai_ci, approximately.

Case and accents do not count; blanks come before punctuation, punctuation
before digits and digits before letters, in the order of Unicode's collation.
"""

import functools
import unicodedata

NAME = "MYSQL"
_PUNCTUATION = (
  "_-\u2010\u2011\u2012\u2013\u2014\u2015,;:!?.\u00b7'\u2018\u2019\"\u201c\u201d"
  "()[]{}@*/\\&#%\u2030\u2020\u2021\u2022`\u00b4^\u00af\u00a8\u00b0\u00a9\u00ae"
  "+\u00b1\u00f7\u00d7<=>|~\u00a2$\u00a3\u00a4\u00a5\u20ac"
)
# Letters that Unicode's decomposition leaves as they are.
_LETTERS = {
  "\u00f8": "o", "\u0142": "l", "\u0111": "d", "\u00e6": "ae", "\u0153": "oe",
  "\u0127": "h", "\u0167": "t",
}  # fmt: skip
# Blanks, punctuation, digits and letters map to code points in this order.
_FIRST = 0xE000  # of Unicode's private use area
_RANKS = {ord(c): _FIRST + i for i, c in enumerate(" " + _PUNCTUATION)} | {
  ord(c): _FIRST + 0x100 + i for i, c in enumerate("0123456789")
}
_LETTERS_FROM = 0xE200
_ANY, _ONE = "%", "_"
MAX_CACHED = 64  # characters of a text whose weights are kept


def compare(a: str, b: str) -> int:
  """Returns -1, 0 or 1 if `a` sorts before, with or after `b`."""
  left, right = weights(a), weights(b)
  return (left > right) - (left < right)


def weights(text: str) -> str:
  """Returns a sort key: keys compare by code point as MySQL compares texts."""
  return (_weights if len(text) > MAX_CACHED else _cached_weights)(text)


def _weights(text: str) -> str:
  return "".join(map(_weight, text))


_cached_weights = functools.lru_cache(maxsize=4096)(_weights)


@functools.lru_cache(maxsize=4096)
def _weight(character: str) -> str:
  parts = unicodedata.normalize("NFKD", character.casefold())
  letters = "".join(
    _LETTERS.get(part, part)
    for part in parts
    if not unicodedata.combining(part)
  )
  return "".join(
    chr(_RANKS.get(ord(c), min(ord(c) + _LETTERS_FROM, 0x10FFFF)))
    for c in letters
  )


def like(pattern: object, text: object, escape: str = "\\") -> bool | None:
  """Implements LIKE: % matches any text, _ any character."""
  if pattern is None or text is None:
    return None
  make = _tokens if len(str(pattern)) > MAX_CACHED else _cached_tokens
  return _matches(make(str(pattern), escape), [*map(_weight, str(text))])


def _tokens(pattern: str, escape: str) -> tuple[str, ...]:
  """Returns the pattern's weights and wildcards; no weight is a wildcard."""
  tokens: list[str] = []
  characters = iter(pattern)
  for character in characters:
    if character == escape:
      tokens.append(_weight(next(characters, escape)))
    elif character in (_ANY, _ONE):
      tokens.append(character)
    else:
      tokens.append(_weight(character))
  return tuple(tokens)


_cached_tokens = functools.lru_cache(maxsize=1024)(_tokens)


def _matches(tokens: tuple[str, ...], text: list[str]) -> bool:
  """Matches with backtracking to the last % only, so in quadratic time."""
  position = token = 0
  last_any = restart = -1
  while position < len(text):
    if token < len(tokens) and tokens[token] == _ANY:
      last_any, restart = token, position
      token += 1
    elif token < len(tokens) and tokens[token] in (_ONE, text[position]):
      token += 1
      position += 1
    elif last_any >= 0:
      restart += 1
      token, position = last_any + 1, restart
    else:
      return False
  return all(rest == _ANY for rest in tokens[token:])
