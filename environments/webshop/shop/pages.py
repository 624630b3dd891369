"""Pages of the shop as texts and buttons, equal to upstream's to the byte.

Upstream renders HTML and strips the tags, which leaves visible texts, joined by
" [SEP] ", and clickable texts. These functions write that result directly.
`browser` keeps the state.
"""

import dataclasses
from collections.abc import Sequence

from environments.options import PageStyle
from environments.webshop.shop.product import Product

SEARCH = "Search"
BACK = "Back to Search"
NEXT = "Next >"
PREVIOUS = "< Prev"
BUY = "Buy Now"
SUBPAGES = ("Description", "Features", "Reviews", "Attributes")


@dataclasses.dataclass(frozen=True)
class Page:
  """Visible texts in reading order, and clickable texts in upstream's order."""

  texts: tuple[str, ...]
  clickables: tuple[str, ...]
  has_search_bar: bool = False

  @property
  def actions(self) -> str:
    """The text that upstream prints under "Available Actions"."""
    return str(
      {
        "has_search_bar": self.has_search_bar,
        "clickables": list(self.clickables),
      }
    )


def search_page(instruction: str | None) -> Page:
  """Writes the first page, with a search bar."""
  texts = ("WebShop", *_heading(instruction), SEARCH)
  return Page(texts, _clickables(SEARCH), has_search_bar=True)


def results_page(
  instruction: str | None,
  products: Sequence[Product],
  *,
  number: int,
  total: int,
) -> Page:
  """Writes page `number` of the results; even the last one has "Next >"."""
  turns = (PREVIOUS, NEXT) if number > 1 else (NEXT,)
  listing = (_visible((p.id, p.title, p.price_tag)) for p in products)
  texts = (
    *_heading(instruction),
    BACK,
    f"Page {number} (Total results: {total})",
    *turns,
    *(text for entry in listing for text in entry),
  )
  return Page(texts, _clickables(BACK, *turns, *(p.id for p in products)))


def item_page(
  instruction: str | None, product: Product, style: PageStyle
) -> Page:
  """Writes the page of one product, its options and the buy button."""
  options = [
    text for name, values in product.options.items() for text in (name, *values)
  ]
  rating = (f"Rating: {product.rating}",) if style.show_subpages else ()
  links = _subpages(style)
  texts = (
    *_heading(instruction),
    BACK,
    PREVIOUS,
    *_visible(options),
    *_visible([product.title]),
    f"Price: {product.price_tag}",
    *rating,
    *links,
    BUY,
  )
  values = (v for values in product.options.values() for v in values)
  return Page(texts, _clickables(BACK, PREVIOUS, *links, BUY, *values))


def chosen_page(item: Page, group: str, value: str) -> Page:
  """Writes a short confirmation of an option, with the item page's buttons."""
  return Page((f"{group}: {value}", BUY), item.clickables)


def subpage(instruction: str | None, product: Product, name: str) -> Page:
  """Writes one of `SUBPAGES`; no product has reviews, as upstream."""
  body = {
    "Description": _visible([product.description]),
    "Features": _visible([f" {feature}" for feature in product.features]),
    "Reviews": (),
    "Attributes": (
      *_visible([f" {attribute}" for attribute in product.attributes]),
      *_visible([product.department, product.query, product.category]),
    ),
  }[name]
  texts = (*_heading(instruction), BACK, PREVIOUS, *body)
  return Page(texts, _clickables(BACK, PREVIOUS))


def _subpages(style: PageStyle) -> tuple[str, ...]:
  *usual, attributes = SUBPAGES
  return (
    *(usual if style.show_subpages else ()),
    *((attributes,) if style.show_attributes else ()),
  )


def without_navigation(page: Page) -> Page:
  """Hides the navigation texts, which can still be clicked."""
  texts = tuple(t for t in page.texts if t not in (BACK, PREVIOUS, NEXT))
  return dataclasses.replace(page, texts=texts)


def _heading(instruction: str | None) -> tuple[str, ...]:
  return () if instruction is None else ("Instruction:", instruction)


def _visible(texts: Sequence[str]) -> tuple[str, ...]:
  """Strips texts and drops empty ones, as an HTML parser does."""
  return tuple(text.strip() for text in texts if text)


def _clickables(*texts: str) -> tuple[str, ...]:
  return tuple(dict.fromkeys(text.lower() for text in texts))
