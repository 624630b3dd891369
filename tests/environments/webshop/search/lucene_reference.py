"""Reference implementation of Lucene's BM25 in plain loops.

Words are split character by character, by the rules of Unicode's annex 29 as
far as shops need them. Scores are float64 sums, text by text.
"""

import math
import unicodedata

from environments.webshop.search import stemmer

K1, B = 0.9, 0.4
_STOP_WORDS = """
  a an and are as at be but by for if in into is it no not of on or such that
  the their then there these they this to was will with
"""
STOP_WORDS = set(_STOP_WORDS.split())


def split_words(text):
  """Splits a text as Lucene's standard tokenizer does."""
  words, word = [], ""
  for i, character in enumerate(text + " "):
    following = text[i + 1 : i + 2]
    if _is_picture(character):
      words += [word, character]
      word = ""
    elif _belongs(character, word[-1:], following):
      word += character
    else:
      words.append(word)
      word = ""
  return [word for word in words if word.strip("_")]


def _belongs(character, before, after):
  """Tells if a character continues the word that ends with `before`."""
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
  """Returns the term of a word, or an empty one for a stop word."""
  for possessive in ("'s", "\u2019s"):
    word = word.removesuffix(possessive)
  return "" if word in STOP_WORDS else stemmer.stem(word)


def terms(text):
  return [s for word in split_words(text.lower()) if (s := stem(word))]


def stored_length(length):
  """Returns the length that Lucene's byte stores.

  The byte is exact up to 24, and keeps the four highest bits of the rest.
  """
  if length < 24:
    return length
  rest = length - 24
  lost = max(0, rest.bit_length() - 4)
  return 24 + (rest >> lost << lost)


class Index:
  """Scores texts for queries."""

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
    """Returns the scores above 0, by text."""
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
    """Returns the best texts; ties, to the precision of floats, keep order."""
    scores = self.scores(query)
    return sorted(scores, key=lambda n: (-round(scores[n], 5), n))[:limit]
