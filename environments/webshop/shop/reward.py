"""Reward of a purchase by WebShop's own formula (arXiv:2207.01206, sec. 3.2).

  reward = r_type (attributes met + options met + [price <= upper])
           / (attributes wanted + options wanted + 1)

Everything is as upstream's code has it, quirks included, except that `nouns`
replaces spaCy's tagger.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping

from rapidfuzz import fuzz, utils

from environments.webshop.shop.product import Goal, Product

FUZZY_MATCH = 85  # of 100; a match scores above
# The colours of upstream's reward. The order decides if an option has several.
_COLOURS = """
  alabaster apricot aqua ash asphalt azure banana beige black blue blush
  bordeaux bronze brown burgundy camel camo caramel champagne charcoal cheetah
  chestnut chocolate christmas coffee cognac copper coral cranberry cream
  crystal dark denim eggplant elephant espresso fuchsia gold granite grape
  graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon
  leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
  multicolor mushroom mustard natural navy nude olive orange peach pewter pink
  plum purple rainbow red rose royal rust sand sapphire seashell silver skull
  slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet
  walnut wheat white wine yellow
"""
COLOURS = tuple(_COLOURS.split())
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


@dataclasses.dataclass(frozen=True)
class PurchaseScore:
  """The reward and its factors, each in [0, 1]."""

  reward: float
  r_type: float
  r_att: float
  r_option: float | None  # None if the goal has no options
  r_price: float

  @property
  def metrics(self) -> Mapping[str, float]:
    factors = {
      "r_type": self.r_type,
      "r_att": self.r_att,
      "r_price": self.r_price,
    }
    if self.r_option is not None:
      factors["r_option"] = self.r_option
    return {"success": float(self.reward == 1), **factors}


def score_purchase(
  product: Product, chosen: Collection[str], goal: Goal
) -> PurchaseScore:
  """Scores the purchase of `product` with the options `chosen`."""
  num_attributes = _num_attributes_met(product, goal.attributes)
  num_options = _num_options_met(chosen, goal.options)
  price_met = product.price <= goal.price_upper
  num_wanted = len(goal.attributes) + len(goal.options) + 1
  r_type = _type_factor(product, goal.product)
  num_met = num_attributes + num_options + price_met
  return PurchaseScore(
    reward=r_type * num_met / num_wanted,
    r_type=r_type,
    r_att=num_attributes / len(goal.attributes),
    r_option=num_options / len(goal.options) if goal.options else None,
    r_price=float(price_met),
  )


def _type_factor(bought: Product, wanted: Product) -> float:
  title_score = _title_score(bought.title, wanted.title)
  if title_score == 0:
    return 0.0
  if title_score < 0.1:
    return 0.1
  shared = _category_parts(bought) & _category_parts(wanted)
  same_kind = bought.query == wanted.query or len(shared) >= 2
  return 1.0 if same_kind or title_score > 0.2 else 0.5


def _title_score(bought: str, wanted: str) -> float:
  """Returns the share of the wanted title's nouns in the bought title."""
  wanted_nouns = nouns(wanted)
  if not wanted_nouns:
    return 0.2
  # Upstream divides distinct shared nouns by all wanted ones, with repeats.
  return len(set(nouns(bought)) & set(wanted_nouns)) / len(wanted_nouns)


def nouns(title: str) -> list[str]:
  """Returns the nouns of `title` in lower case, in order.

  Upstream keeps spaCy's nouns and proper nouns, which are nearly all words of a
  listing. Other words belong to small, closed classes. So every word counts as
  a noun unless it is a number, a function word, a common adjective or a verb
  form.
  """
  words = _WORD.findall(title.lower())
  return [word for word in words if word not in _NOT_NOUNS]


def reduce_to_colour(option: str) -> str:
  """Returns the first colour that is a substring of `option`, or the option.

  So "light blue" is "blue", and "standard" is "tan", as upstream has it.
  """
  return next((colour for colour in COLOURS if colour in option), option)


def _category_parts(product: Product) -> set[str]:
  return {part.strip() for part in product.category.split("›")}


def _num_attributes_met(product: Product, wanted: Iterable[str]) -> int:
  """Counts attributes among the product's own, or in one of its texts."""
  texts = (product.title, " ".join(product.features), product.description)
  return sum(
    _matches_any(attribute, product.attributes)
    or any(attribute in text.lower() for text in texts)
    for attribute in wanted
  )


def _num_options_met(chosen: Iterable[str], wanted: Iterable[str]) -> int:
  colours = [reduce_to_colour(value) for value in chosen]
  return sum(_matches_any(reduce_to_colour(v), colours) for v in wanted)


def _matches_any(wanted: str, offered: Iterable[str]) -> bool:
  return any(matches(value, wanted) for value in offered)


def matches(value: str, wanted: str) -> bool:
  """Compares fuzzily: "x-large" matches "large", because it has all words."""
  score = fuzz.token_set_ratio(value, wanted, processor=utils.default_process)
  return round(score) > FUZZY_MATCH
