"""Which words of a title name the thing, without a tagger.

Upstream keeps what spaCy tags as a noun or a proper noun. In listings almost
every word is tagged so, and what is not belongs to small, closed classes. So
this keeps every word that is neither a number nor on a list of function words,
common adjectives and verb forms.
"""

import re

_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTION_WORDS = """
  about above across after against all along also an and any are around as at
  be because before behind below between both but by can could do does down
  during each either else every few for from had has have he her here him his
  how if in inside into is it its just least less like many may me might more
  most must my near neither no nor not now of off on once one only onto or other
  our out outside over own per quite rather same she should since so some such
  than that the their them then there these they this those though through till
  to too toward under until up upon us very via was we were what when where
  whether which while who whose why will with within without would yet you your
  two three four five six seven eight nine ten
"""
_QUALIFIERS = """
  able adjustable advanced amazing antique artificial authentic automatic
  available awesome basic beautiful best better big bold breathable bright
  broad cheap classic clean clear colorful comfortable comfy compatible complete
  convenient cool cozy creative cute daily decorative deep delicate delicious
  dense different digital double dry durable easy effective elastic electric
  electronic elegant essential excellent extra fashionable fast favorite final
  fine firm first fit flat flexible floral foldable folding fresh friendly full
  fun funny gentle genuine giant good gorgeous great handmade handy happy hard
  healthy heavy high hot huge ideal inflatable instant internal
  large last lightweight little long loose lovely low luxurious magnetic main
  major manual medium mini modern multiple narrow natural new nice novel old
  only open ordinary organic original ornamental outdoor overall perfect
  permanent personal plain plastic pleasant plus polished popular portable
  powerful practical premium pretty private professional proper pure quick quiet
  random rare raw ready real reclaimed reliable removable replaceable reusable
  rich right rigid rough round rustic safe scented seamless sensitive separate
  sexy sharp shiny short significant silky simple single sleek slim slippery
  small smart smooth soft solid special stable standard steady sticky stiff
  straight strong stunning stylish suitable super sweet swivel tall tasty
  temporary thick thin tight tiny traditional transparent ultra unique universal
  useful various vegan vertical vibrant vintage warm washable waterproof
  wearable wet whole wide wireless wonderful wooden worn young
  get gets give gives includes including keep keeps make makes made take takes
  use used using wear wears
"""
_NOT_NOUNS = frozenset((_FUNCTION_WORDS + _QUALIFIERS).split())


def nouns(title: str) -> list[str]:
  """The words of `title` that name the thing, in order, in lower case."""
  words = _WORD.findall(title.lower())
  return [word for word in words if word not in _NOT_NOUNS]
