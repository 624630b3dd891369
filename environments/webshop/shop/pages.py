"""What a shopper sees: pages as texts and buttons, byte for byte upstream's.

Upstream renders HTML and strips it again; what is left are visible texts joined
by " [SEP] " and the texts that can be clicked. These functions write that
result. Where the shopper stands is for `browser` to know.
"""

import dataclasses
from collections.abc import Sequence

from environments.webshop.shop.product import Product

SEPARATOR = " [SEP] "
SEARCH = "Search"
BACK = "Back to Search"
NEXT = "Next >"
PREVIOUS = "< Prev"
BUY = "Buy Now"
SUBPAGES = ("Description", "Features", "Reviews", "Attributes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageStyle:
  """How much a page says. The defaults are upstream's pages.

  Smaller pages make shorter episodes for policies with little context. What can
  be clicked stays the same, seen or not, but for the sub-pages.
  """

  results_per_page: int = 10
  separator: str = SEPARATOR  # between the texts of a page
  repeat_instruction: bool = True  # on every page, not on the first alone
  repeat_item: bool = True  # after a chosen option, not only once
  list_actions: bool = True  # ends with the list of what can be clicked
  show_headings: bool = True  # what led here, and that an observation follows
  show_navigation: bool = True  # back, previous and next
  show_subpages: bool = True  # description, features, reviews and rating
  show_attributes: bool = False  # the sub-page that gives the answer away


@dataclasses.dataclass(frozen=True)
class Page:
  """Visible texts in reading order, and clickable texts in upstream's order."""

  texts: tuple[str, ...]
  clickables: tuple[str, ...]
  has_search_bar: bool = False

  @property
  def actions(self) -> str:
    """What upstream prints under "Available Actions"."""
    return str(
      {
        "has_search_bar": self.has_search_bar,
        "clickables": list(self.clickables),
      }
    )


def search_page(instruction: str | None) -> Page:
  """The first page: a search bar."""
  texts = ("WebShop", *_heading(instruction), SEARCH)
  return Page(texts, _clickables(SEARCH), has_search_bar=True)


def results_page(
  instruction: str | None,
  products: Sequence[Product],
  *,
  number: int,
  total: int,
) -> Page:
  """Page `number` of the results. "Next >" is there even on the last one."""
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
  """One product, its options, and the button that ends it all."""
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
  """A short stand-in for `item`, the item page, after an option was chosen."""
  return Page((f"{group}: {value}", BUY), item.clickables)


def subpage(instruction: str | None, product: Product, name: str) -> Page:
  """One of `SUBPAGES`. Nobody has ever written a review, upstream or here."""
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
  """The page without the texts that lead elsewhere; they can be clicked yet."""
  texts = tuple(t for t in page.texts if t not in (BACK, PREVIOUS, NEXT))
  return dataclasses.replace(page, texts=texts)


def _heading(instruction: str | None) -> tuple[str, ...]:
  return () if instruction is None else ("Instruction:", instruction)


def _visible(texts: Sequence[str]) -> tuple[str, ...]:
  """What an HTML parser leaves of `texts`: nothing of empty ones."""
  return tuple(text.strip() for text in texts if text)


def _clickables(*texts: str) -> tuple[str, ...]:
  return tuple(dict.fromkeys(text.lower() for text in texts))
