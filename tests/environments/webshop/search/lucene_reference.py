"""BM25 as Lucene has it, in plain loops: what the shop's index is held against.

Words are found by walking through the characters, with the rules of Unicode's
annex 29 as far as shops need them; scores are sums of float64, text by text.
"""

import math
import unicodedata

from nltk.stem.porter import PorterStemmer

K1, B = 0.9, 0.4
_STOP_WORDS = """
  a an and are as at be but by for if in into is it no not of on or such that
  the their then there these they this to was will with
"""
STOP_WORDS = set(_STOP_WORDS.split())
_PORTER = PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS)


def words(text):
  """The words of `text` as Lucene's standard tokenizer cuts them."""
  found, word = [], ""
  for i, character in enumerate(text + " "):
    following = text[i + 1 : i + 2]
    if _is_picture(character):
      found += [word, character]
      word = ""
    elif _belongs(character, word[-1:], following):
      word += character
    else:
      found.append(word)
      word = ""
  return [word for word in found if word.strip("_")]


def _belongs(character, before, after):
  """Whether a character goes on with the word that ends with `before`."""
  category = unicodedata.category(character)
  if category in ("Nd", "Nl") or category[0] == "L" or character == "_":
    return True
  if category in ("Mn", "Mc", "Me", "Cf") and character != "\u200b":
    return bool(before)
  joins_letters = character in "'.:\u2018\u2019\u2024\u00b7"
  joins_digits = character in "'.,;\u2018\u2019\u2024"
  return (joins_letters and before.isalpha() and after.isalpha()) or (
    joins_digits and before.isdecimal() and after.isdecimal()
  )


def _is_picture(character):
  return character in "\u00a9\u00ae\u2122" or (
    unicodedata.category(character) == "So"
    and (
      0x2600 <= ord(character) <= 0x27BF or 0x1F000 <= ord(character) <= 0x1FAFF
    )
  )


def stem(word):
  """The term that a word becomes, or nothing."""
  for possessive in ("'s", "\u2019s"):
    word = word.removesuffix(possessive)
  return "" if word in STOP_WORDS else _PORTER.stem(word, to_lowercase=False)


def terms(text):
  return [s for word in words(text.lower()) if (s := stem(word))]


def stored_length(length):
  """The length that is left of `length` when it has been put into a byte.

  To 24 as it is; of what is above, the four highest binary digits.
  """
  if length < 24:
    return length
  rest = length - 24
  lost = max(0, rest.bit_length() - 4)
  return 24 + (rest >> lost << lost)


class Index:
  """Scores every text for a query."""

  def __init__(self, texts):
    bags = [terms(text) for text in texts]
    self._lengths = [stored_length(len(bag)) for bag in bags]
    self._mean = sum(map(len, bags)) / len(bags)
    self._counts = {}  # term -> text -> how often
    for number, bag in enumerate(bags):
      for term in bag:
        counts = self._counts.setdefault(term, {})
        counts[number] = counts.get(number, 0) + 1

  def scores(self, query):
    """Text -> score, of the texts that score."""
    scores = {}
    for term in terms(query):
      counts = self._counts.get(term, {})
      having, all_texts = len(counts), len(self._lengths)
      idf = math.log(1 + (all_texts - having + 0.5) / (having + 0.5))
      for number, count in counts.items():
        length = self._lengths[number] / self._mean
        damped = count + K1 * (1 - B + B * length)
        scores[number] = scores.get(number, 0.0) + idf * count / damped
    return scores

  def best(self, query, *, limit):
    """The best texts, of equal ones the first; floats tell no more apart."""
    scores = self.scores(query)
    return sorted(scores, key=lambda n: (-round(scores[n], 5), n))[:limit]
