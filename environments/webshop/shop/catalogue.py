"""Catalogue of one shop."""

import functools
from collections.abc import Sequence

from environments.webshop.search.index import SearchIndex, build_index
from environments.webshop.shop.product import Product

MAX_RESULTS = 50


class Catalogue:
  """Immutable products, with an index that the first search builds."""

  def __init__(self, products: Sequence[Product]):
    self.products: Sequence[Product] = tuple(products)
    self._by_id = {product.id.lower(): product for product in self.products}
    if len(self._by_id) < len(self.products):
      raise ValueError(
        f"{len(self.products)} products share {len(self._by_id)} ids; "
        "every product needs an id of its own, ignoring case"
      )

  def find(self, product_id: str) -> Product | None:
    """Returns the product with this id, ignoring case."""
    return self._by_id.get(product_id.lower())

  def search(self, keywords: str) -> tuple[Product, ...]:
    """Returns at most 50 matches, best first."""
    positions = self._index.search(keywords, limit=MAX_RESULTS)
    return tuple(self.products[position] for position in positions)

  @functools.cached_property
  def _index(self) -> SearchIndex:
    return build_index([product.indexed_text for product in self.products])
