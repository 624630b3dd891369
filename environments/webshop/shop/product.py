"""Records of products and goals."""

import dataclasses
from collections.abc import Mapping

Options = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
  """One listing; the price is paid, and the price tag is shown on pages."""

  id: str  # as shown; clicks ignore its case
  title: str
  query: str  # the kind of product
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
    """The text that is searched, without the attributes."""
    options = ", and ".join(
      f"{name}: {', '.join(values)}" for name, values in self.options.items()
    )
    first_feature = self.features[0] if self.features else ""
    return f"{self.title} {self.description} {first_feature} {options}".lower()

  @property
  def canonical_text(self) -> str:
    """The content of the listing, without its id."""
    return f"{self.indexed_text}|{self.category}|{self.price_tag}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
  """A goal, which `product` and possibly other products satisfy."""

  instruction: str
  product: Product
  attributes: tuple[str, ...]
  options: tuple[str, ...]  # values to choose, one per wanted group
  price_upper: float  # dollars
