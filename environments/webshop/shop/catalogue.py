"""The products of one shop, found by id or by search."""

import functools
from collections.abc import Sequence

from environments.webshop.search.index import SearchIndex, index_of
from environments.webshop.shop.product import Product

MAX_RESULTS = 50


class Catalogue:
  """Immutable; the search index is built when it is first asked."""

  def __init__(self, products: Sequence[Product]):
    self.products: Sequence[Product] = tuple(products)
    self._by_id = {product.id.lower(): product for product in self.products}
    if len(self._by_id) < len(self.products):
      raise ValueError(
        f"{len(self.products)} products share {len(self._by_id)} ids; "
        "every product needs an id of its own, whatever its case"
      )

  def find(self, product_id: str) -> Product | None:
    """The product with this id, in whatever case."""
    return self._by_id.get(product_id.lower())

  def search(self, keywords: str) -> tuple[Product, ...]:
    """The best matches, best first, 50 at the most."""
    found = self._index.search(keywords, limit=MAX_RESULTS)
    return tuple(self.products[position] for position in found)

  @property
  def canonical_text(self) -> str:
    """What the shop sells, in an order that does not depend on the ids."""
    return "\n".join(sorted(p.canonical_text for p in self.products))

  @functools.cached_property
  def _index(self) -> SearchIndex:
    return index_of([product.indexed_text for product in self.products])
