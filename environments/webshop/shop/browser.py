"""State machine of one visit to a shop, from actions to pages.

An action that the page does not offer changes nothing, as upstream has it.
"""

from environments.options import PageStyle
from environments.webshop.shop import pages
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.pages import Page
from environments.webshop.shop.product import Product

MAX_KEYWORDS = 1_000  # characters of a query that are read


class Browser:
  """The current page, item and chosen options of one visit."""

  def __init__(self, catalogue: Catalogue, instruction: str, style: PageStyle):
    self._catalogue = catalogue
    self._style = style
    self._instruction = instruction if style.repeat_instruction else None
    self._keywords = ""
    self._page_number = 1  # of the page of results
    self._item: Product | None = None
    self._on_subpage = False
    self._page = pages.search_page(instruction)
    self.chosen: dict[str, str] = {}  # option group -> value
    self.bought: Product | None = None

  @property
  def page(self) -> Page:
    if self._style.show_navigation:
      return self._page
    return pages.without_navigation(self._page)

  def search(self, keywords: str) -> None:
    """Searches from any page; upstream requires no search bar."""
    if keywords:
      self._keywords = keywords.lower()[:MAX_KEYWORDS]
      self._show_results(1)

  def click(self, value: str) -> None:
    """Clicks a text of the page, ignoring case; other values do nothing."""
    value = value.lower()
    if self.bought is not None or value not in self._page.clickables:
      return
    if self._item is None:
      self._click_outside(value)
    else:
      self._click_on_item(self._item, value)

  def _click_outside(self, value: str) -> None:
    """Handles a click on the search page or a page of results."""
    if value == pages.BACK.lower():
      self._leave_item()
      self._page = pages.search_page(self._instruction)
    elif value == pages.NEXT.lower():
      self._show_results(self._page_number + 1)
    elif value == pages.PREVIOUS.lower():
      self._show_results(self._page_number - 1)
    elif value != pages.SEARCH.lower():
      self._item = self._catalogue.find(value)
      self._show_item()

  def _click_on_item(self, item: Product, value: str) -> None:
    """Handles a click on an item page or one of its sub-pages."""
    subpage = {name.lower(): name for name in pages.SUBPAGES}.get(value)
    if value == pages.BUY.lower():
      self.bought = item
    elif value == pages.BACK.lower():
      self._click_outside(value)
    elif value == pages.PREVIOUS.lower() and self._on_subpage:
      self._show_item()
    elif value == pages.PREVIOUS.lower():
      self._show_results(self._page_number)
    elif subpage is not None:
      self._on_subpage = True
      self._page = pages.subpage(self._instruction, item, subpage)
    else:
      self._choose(item, value)

  def _choose(self, item: Product, value: str) -> None:
    # Two groups may have the same value; upstream takes the later group.
    group = [name for name, values in item.options.items() if value in values]
    self.chosen[group[-1]] = value
    self._show_item()
    if not self._style.repeat_item:
      self._page = pages.chosen_page(self._page, group[-1], value)

  def _show_results(self, number: int) -> None:
    self._leave_item()
    self._page_number = number
    products = self._catalogue.search(self._keywords)
    size = self._style.results_per_page
    self._page = pages.results_page(
      self._instruction,
      products[(number - 1) * size : number * size],
      number=number,
      total=len(products),
    )

  def _show_item(self) -> None:
    assert self._item is not None
    self._on_subpage = False
    self._page = pages.item_page(self._instruction, self._item, self._style)

  def _leave_item(self) -> None:
    self._item = None
    self._on_subpage = False
    self.chosen = {}
