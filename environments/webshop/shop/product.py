"""What a shop sells and what a shopper wants: frozen records.

Nothing here knows pages, search or reward; `generator` and `listings` make
these records, everything else reads them.
"""

import dataclasses
from collections.abc import Mapping

Options = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
  """One listing. `price` is what is paid, `price_tag` what the page says."""

  id: str  # as shown; clicks compare it without case
  title: str
  query: str  # the kind of product, as one would search for it
  department: str  # one of a few, such as "fashion"
  category: str  # a path such as "Clothing › Women › Shoes"
  attributes: tuple[str, ...]
  options: Options
  price: float  # dollars
  price_tag: str
  description: str = ""
  features: tuple[str, ...] = ()
  rating: str = "N.A."

  @property
  def indexed_text(self) -> str:
    """What the search engine reads; attributes are not part of it."""
    options = ", and ".join(
      f"{name}: {', '.join(values)}" for name, values in self.options.items()
    )
    first_feature = self.features[0] if self.features else ""
    return f"{self.title} {self.description} {first_feature} {options}".lower()

  @property
  def canonical_text(self) -> str:
    """All that tells this listing from another, but for its id."""
    return f"{self.indexed_text}|{self.category}|{self.price_tag}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
  """What to buy: `product` satisfies it fully, and others may do so too."""

  instruction: str
  product: Product
  attributes: tuple[str, ...]
  options: tuple[str, ...]  # values to be chosen, one per wanted group
  price_upper: float  # dollars
