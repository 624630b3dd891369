"""Stems equal nltk's: of words for each rule, and of all words that come."""

import pathlib
import random
import re

import pytest

from environments.webshop.search.stemmer import stem

# Recorded from nltk. Without any rule, or with another bound, one would differ.
RECORDED = """
  educational:educ emotional:emot agency:agenc vacancy:vacanc atomizer:atom
  bubbly:bubbl equally:equal decently:decent barely:bare seriously:serious
  utilization:util adoration:ador orator:orat liberalism:liber
  gracefulness:grace bisexuality:bisexu emmisivity:emmis inability:inabl
  apology:apolog certificate:certif negative:neg initialize:initi
  elasticity:elast botanical:botan arness:ar witnesses:wit dies:di abs:ab
  abuser:abus adorable:ador eligible:elig elegant:eleg disagreement:disagr
  argument:argument andalou:andal activism:activ ability:abil
  effectiveness:effect as:as cry:cry ful:ful erosion:eros asurion:asurion
  abull:abul all:all feed:feed aed:a aging:ag bed:bed animated:anim
  adjustabled:adjust anodized:anod called:call kissed:kiss fizzed:fizz
  looing:loo delivered:deliv eyed:ei hinged:hing howe:how luxe:lux faye:fay
  dyed:dy
"""
STEMS = dict(pair.split(":") for pair in RECORDED.split())
ENDS = """
  ational ization ation ator alism iveness fulness ousness aliti iviti biliti
  logi icate ative alize iciti ical ful ness ement ment ent ion ous ize s ies ed
  ing eed y e ll
"""


def test_each_rule():
  assert {word: stem(word) for word in STEMS} == STEMS


@pytest.mark.slow
def test_words_of_pages_and_of_chance_have_nltks_stems():
  porter = pytest.importorskip("nltk.stem.porter").PorterStemmer
  theirs = porter(mode=porter.MARTIN_EXTENSIONS)
  root = pathlib.Path(__file__).parents[4]
  pages = [path.read_text().lower() for path in root.glob("docs/*.md")]
  words = {*re.findall(r"\w+", " ".join(pages))}
  rng = random.Random(0)
  for _ in range(50_000):
    letters = "".join(rng.choices("aeiouybtlszwxn\u00e9c", k=rng.randint(0, 5)))
    words.add(letters + "".join(rng.choices(ENDS.split(), k=rng.randint(0, 3))))
  assert len(words) > 40_000
  expected = {word: theirs.stem(word, to_lowercase=False) for word in words}
  assert {word: stem(word) for word in words} == expected
