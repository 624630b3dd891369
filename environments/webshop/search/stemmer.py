"""Porter's stemmer with the two rules that he changed later, as Lucene has it.

M.F. Porter, An algorithm for suffix stripping, 1980. The measure of a text is
the number of its runs of vowels that a consonant follows.
"""

from collections.abc import Mapping

_PLURALS = {"sses": "ss", "ies": "i", "ss": "ss", "s": ""}
# In each table the first suffix that fits decides.
_DOUBLE_SUFFIXES = {
  "ational": "ate",
  "tional": "tion",
  "enci": "ence",
  "anci": "ance",
  "izer": "ize",
  "bli": "ble",  # abli in the paper
  "alli": "al",
  "entli": "ent",
  "eli": "e",
  "ousli": "ous",
  "ization": "ize",
  "ation": "ate",
  "ator": "ate",
  "alism": "al",
  "iveness": "ive",
  "fulness": "ful",
  "ousness": "ous",
  "aliti": "al",
  "iviti": "ive",
  "biliti": "ble",
  "logi": "log",  # not in the paper
}
_SUFFIXES = {
  "icate": "ic",
  "ative": "",
  "alize": "al",
  "iciti": "ic",
  "ical": "ic",
  "ful": "",
  "ness": "",
}
_LAST = """
  al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize
"""
_LAST_SUFFIXES = dict.fromkeys(_LAST.split(), "")


def stem(word: str) -> str:
  """Returns the stem of a word in lower case."""
  if len(word) <= 2:
    return word
  word = _without_participle(_replaced(word, _PLURALS, above=-1))
  if word.endswith("y") and "v" in _shape(word[:-1]):
    word = word[:-1] + "i"
  word = _replaced(word, _DOUBLE_SUFFIXES, above=0)
  word = _replaced(word, _SUFFIXES, above=0)
  if not word.endswith("ion") or word.endswith(("sion", "tion")):
    word = _replaced(word, _LAST_SUFFIXES, above=1)
  rest = word.removesuffix("e")
  if _measure(rest) > (1 if _ends_short(rest) else 0) and rest != word:
    word = rest
  if word.endswith("ll") and _measure(word[:-1]) > 1:
    word = word[:-1]
  return word


def _without_participle(word: str) -> str:
  """Removes -ed and -ing, and mends what is left."""
  if word.endswith("eed"):
    return word[:-1] if _measure(word[:-3]) > 0 else word
  rest = word.removesuffix("ed" if word.endswith("ed") else "ing")
  if rest == word or "v" not in _shape(rest):
    return word
  if rest.endswith(("at", "bl", "iz")):
    return rest + "e"
  is_double = rest[-2:-1] == rest[-1] and _shape(rest).endswith("c")
  if is_double and rest[-1] not in "lsz":
    return rest[:-1]
  return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _replaced(word: str, suffixes: Mapping[str, str], *, above: int) -> str:
  """Replaces a suffix after a text whose measure is above a bound."""
  found = next((suffix for suffix in suffixes if word.endswith(suffix)), "")
  rest = word.removesuffix(found)
  if not found or _measure(rest) <= above:
    return word
  return rest + suffixes[found]


def _measure(text: str) -> int:
  return _shape(text).count("vc")


def _ends_short(text: str) -> bool:
  """Tells if a text ends as "hop" does, and not as "snow", "box" or "tray"."""
  return _shape(text).endswith("cvc") and text[-1] not in "wxy"


def _shape(text: str) -> str:
  """Returns v for each vowel, c for others; y after a consonant is a vowel."""
  shape = ""
  for letter in text:
    is_vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
    shape += "v" if is_vowel else "c"
  return shape
