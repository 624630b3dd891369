"""Splits texts into search terms, as Lucene's EnglishAnalyzer does.

Words follow Unicode's annex 29 (letters, digits and the marks between them).
Possessive 's and stop words are removed, and words are reduced to Porter's
stems. A pictograph is a word, and so is each Chinese or Hiragana character.
"""

import functools
import re
import unicodedata

from environments.webshop.search.stemmer import stem

_STOP_WORDS = """
  a an and are as at be but by for if in into is it no not of on or such that
  the their then there these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
MAX_WORD = 255  # characters; Lucene splits longer words
_PLANES = 0x20000  # higher code points are rare ideographs only

_HAN = (
  "\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3005\u3007\u3021-\u3029"
  "\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9\U00020000-\U0003ffff"
)
_HIRAGANA = "\u3041-\u3096\u309d-\u309f\U0001f200"
_KATAKANA = (
  "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
  "\u32d0-\u32fe\u3300-\u3357\uff66-\uff9d"
)
_PICTURES = (
  "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b"
  "\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0"
  "\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
  "\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c"
  "\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf"
  "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
  "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f"
  "\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a"
  "\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f"
  "\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f53d"
  "\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f"
  "\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f"
  "\U0001f85a-\U0001f85f\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff"
  "\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001faff"
)


def _ranges_of(*categories: str) -> str:
  """Returns the characters of Unicode categories, as ranges of a pattern."""
  runs: list[list[int]] = []
  for code in range(_PLANES):
    if unicodedata.category(chr(code)) in categories:
      if runs and code == runs[-1][1] + 1:
        runs[-1][1] = code
      else:
        runs.append([code, code])
  return "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)


# Word characters of Python that are none of annex 29: superscript digits,
# fractions, numbers in circles.
_NO_WORDS = _ranges_of("No")
# Marks belong to the character before them; a zero-width space does not.
_MARKS = _ranges_of("Mn", "Mc", "Me", "Cf").replace(
  "\u200b-\u200f", "\u200c-\u200f"
)
_ALONE = _HAN + _HIRAGANA + _KATAKANA + _PICTURES + _NO_WORDS
# Marks that may stand inside a word: between two letters, or two digits.
_QUOTES = "'.\u2018\u2019\u2024\ufe52\uff07\uff0e"
_IN_LETTERS = _QUOTES + ":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a\u02d7"
_IN_DIGITS = (
  _QUOTES + ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50"
  "\ufe54\uff0c\uff1b"
)

_CHARACTER = rf"(?:(?![{_ALONE}])\w[{_MARKS}]*)"
_LETTER = rf"(?![{_ALONE}])[^\W\d_]"
_PICTURE = rf"[{_PICTURES}][{_MARKS}\U0001f3fb-\U0001f3ff]*"
_WORD = re.compile(
  rf"{_CHARACTER}+"
  rf"(?:(?:(?<=[^\W\d_])[{_IN_LETTERS}](?={_LETTER})"
  rf"|(?<=\d)[{_IN_DIGITS}](?=\d)){_CHARACTER}+)*"
  rf"|[{_KATAKANA}][{_KATAKANA}{_MARKS}_]*"
  rf"|[{_HAN}{_HIRAGANA}][{_MARKS}]*"
  rf"|{_PICTURE}(?:(?<=\u200d){_PICTURE})*"
)
_WORD_OF_ASCII = re.compile(
  r"[0-9a-z_]+(?:(?:(?<=[a-z])['.:](?=[a-z])|(?<=[0-9])['.,;](?=[0-9]))"
  r"[0-9a-z_]+)*"
)


def stems(text: str) -> list[str]:
  """Returns the terms of `text` in order."""
  text = text.lower()
  word = _WORD_OF_ASCII if text.isascii() else _WORD
  return [each for match in word.findall(text) for each in _stems_of(match)]


@functools.lru_cache(maxsize=1 << 18)
def _stems_of(word: str) -> tuple[str, ...]:
  """Returns the stem of one word, none, or one per piece of a long word."""
  if not word.strip("_"):
    return ()
  if len(word) > MAX_WORD:
    cuts = range(0, len(word), MAX_WORD)
    return tuple(
      each for cut in cuts for each in _stems_of(word[cut : cut + MAX_WORD])
    )
  if word[-2:] in ("'s", "\u2019s", "\uff07s"):
    word = word[:-2]
  if word in STOP_WORDS:
    return ()
  return (stem(word),)
