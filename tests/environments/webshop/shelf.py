"""A small shop with three products, for the tests of several files."""

from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product


def a_product(id, title, **changes):
  """Makes a product, by default a shirt."""
  fields = {
    "query": "shirt",
    "department": "fashion",
    "category": "Clothing › Men › Shirts",
    "attributes": ("slim fit", "machine wash"),
    "options": {"color": ("red", "blue"), "size": ("small", "large")},
    "price": 20.0,
    "price_tag": "$20.0",
  }
  return Product(id=id, title=title, **fields | changes)


SHIRT = a_product(
  "b1", "nordan slim fit shirt", description="soft", features=("wool", "dyed")
)
EXPENSIVE = a_product(
  "b2", "velora slim fit shirt", price=50.0, price_tag="$50.0"
)
LAMP = a_product(
  "b3",
  "bratex table lamp",
  query="table lamp",
  department="garden",
  category="Home › Lighting › Lamps",
  attributes=("hand painted",),
  options={},
)
CATALOGUE = Catalogue([SHIRT, EXPENSIVE, LAMP])
GOAL = Goal(
  instruction="i need slim fit shirt with color: red, and size: large, "
  "and price lower than 30.00 dollars",
  product=SHIRT,
  attributes=("slim fit",),
  options=("red", "large"),
  price_upper=30.0,
)


def a_shop_with_brackets():
  """Makes a cable with options in brackets, and a goal for one of them."""
  cable = a_product(
    "b4",
    "bratex usb cable",
    query="cable",
    attributes=("braided",),
    options={"length": ("black [1 m]", "white [2 m]")},
  )
  goal = Goal(
    instruction="i need a braided cable",
    product=cable,
    attributes=("braided",),
    options=("white [2 m]",),
    price_upper=30.0,
  )
  return Catalogue([cable]), goal
