"""The words of generated shops: departments, kinds of products, options.

Plain tables. Words are short, common and in lower case, so that a small
vocabulary covers them. Within a department no attribute matches another, and
within a kind no option value matches another, by the reward's fuzzy measure;
a test keeps it so, or a wrong choice could pass for the right one.
"""

import dataclasses

OPTION_VALUES = {
  "color": (
    "black", "white", "grey", "red", "blue", "green", "brown", "pink",
    "purple", "yellow", "orange", "navy",
  ),
  "size": ("small", "medium", "large", "petite", "tall"),
  "shoe size": ("5", "6", "7", "8", "9", "10", "11", "12"),
  "bed size": ("twin", "full", "queen", "king"),
  "flavor": (
    "vanilla", "honey", "cherry", "ginger", "salted", "spicy", "garlic",
    "cinnamon", "maple", "mango",
  ),
  "scent": ("lavender", "rose", "citrus", "coconut", "cedar", "jasmine"),
  "length": ("3ft", "6ft", "10ft", "15ft"),
  "storage": ("16gb", "32gb", "64gb", "128gb", "256gb"),
  "volume": ("30ml", "75ml", "120ml", "500ml"),
  "weight": ("4oz", "8oz", "16oz", "32oz"),
  "wood": ("oak", "walnut", "pine", "maple", "birch"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kind:
  """One kind of product: what it is called, where it stands, how it varies."""

  query: str
  category: str
  attributes: tuple[str, ...]
  groups: tuple[str, ...]  # of options
  prices: tuple[int, int]  # dollars, from and to


@dataclasses.dataclass(frozen=True)
class _Department:
  path: str
  attributes: tuple[str, ...]
  # query -> aisle, option groups, price range
  kinds: dict[str, tuple[str, tuple[str, ...], tuple[int, int]]]


_FASHION = _Department(
  "Clothing, Shoes & Jewelry",
  (
    "machine wash", "slim fit", "long sleeve", "quick drying", "cotton lining",
    "rubber sole", "elastic waist", "moisture wicking", "faux fur",
    "high waist", "hand stitched", "wool blend", "memory foam", "zipper pocket",
  ),
  {
    "shirt": ("Men › Shirts", ("color", "size"), (12, 58)),
    "jacket": ("Men › Coats", ("color", "size"), (25, 140)),
    "trousers": ("Men › Trousers", ("color", "size"), (18, 90)),
    "dress": ("Women › Dresses", ("color", "size"), (20, 120)),
    "skirt": ("Women › Skirts", ("color", "size"), (14, 70)),
    "leggings": ("Women › Active", ("color", "size"), (10, 48)),
    "sneakers": ("Shoes › Sport", ("color", "shoe size"), (24, 130)),
    "boots": ("Shoes › Boots", ("color", "shoe size"), (30, 170)),
    "sandals": ("Shoes › Summer", ("color", "shoe size"), (12, 75)),
    "scarf": ("Accessories › Scarves", ("color",), (8, 45)),
    "belt": ("Accessories › Belts", ("size",), (9, 50)),
    "backpack": ("Luggage › Backpacks", ("color",), (19, 110)),
  },
)  # fmt: skip
_BEAUTY = _Department(
  "Beauty & Personal Care",
  (
    "cruelty free", "long lasting", "paraben free", "sensitive skin",
    "natural oils", "travel sized", "anti aging", "deep cleansing",
    "aloe vera", "clinically tested", "vitamin rich", "sulfate removed",
  ),
  {
    "shampoo": ("Hair Care › Shampoo", ("scent", "volume"), (6, 40)),
    "conditioner": ("Hair Care › Conditioner", ("scent", "volume"), (6, 40)),
    "hair brush": ("Hair Care › Tools", ("color",), (5, 35)),
    "face cream": ("Skin Care › Face", ("volume",), (9, 80)),
    "body lotion": ("Skin Care › Body", ("scent", "volume"), (7, 45)),
    "lip balm": ("Makeup › Lips", ("flavor",), (3, 22)),
    "nail polish": ("Makeup › Nails", ("color",), (4, 25)),
    "perfume": ("Fragrance › Bottles", ("scent", "volume"), (18, 140)),
    "soap bar": ("Bath › Soap", ("scent",), (3, 28)),
    "toothbrush": ("Oral Care › Brushes", ("color",), (3, 60)),
  },
)  # fmt: skip
_ELECTRONICS = _Department(
  "Electronics",
  (
    "fast charging", "noise cancelling", "easy install", "water resistant",
    "plug play", "stereo sound", "touch screen", "gold plated", "heavy duty",
    "carbon fiber", "night vision", "hands operated",
  ),
  {
    "headphones": ("Audio › Headphones", ("color",), (15, 190)),
    "speaker": ("Audio › Speakers", ("color",), (18, 220)),
    "microphone": ("Audio › Recording", ("color",), (20, 160)),
    "charger": ("Power › Chargers", ("color", "length"), (8, 60)),
    "hdmi cable": ("Video › Cables", ("length",), (5, 40)),
    "projector": ("Video › Projectors", ("color",), (60, 380)),
    "camera": ("Photo › Cameras", ("color", "storage"), (70, 420)),
    "memory card": ("Photo › Storage", ("storage",), (7, 75)),
    "tablet": ("Computers › Tablets", ("color", "storage"), (80, 450)),
    "keyboard": ("Computers › Input", ("color",), (12, 140)),
  },
)  # fmt: skip
_HOME = _Department(
  "Home & Kitchen",
  (
    "easy assemble", "space saving", "solid wood", "stainless steel",
    "eco friendly", "dishwasher proof", "hand painted", "non slip",
    "storage drawers", "high density", "fade resistant", "double sided",
  ),
  {
    "desk": ("Furniture › Office", ("wood",), (60, 340)),
    "bookcase": ("Furniture › Shelves", ("wood",), (40, 260)),
    "dining chair": ("Furniture › Dining", ("color", "wood"), (35, 210)),
    "mattress": ("Bedding › Mattresses", ("bed size",), (90, 480)),
    "blanket": ("Bedding › Blankets", ("color", "bed size"), (15, 95)),
    "pillow": ("Bedding › Pillows", ("color",), (9, 60)),
    "table lamp": ("Lighting › Lamps", ("color",), (16, 120)),
    "candle": ("Decor › Candles", ("scent",), (6, 42)),
    "curtains": ("Decor › Windows", ("color",), (14, 88)),
    "frying pan": ("Cooking › Pans", ("color",), (13, 105)),
  },
)  # fmt: skip
_GROCERY = _Department(
  "Grocery & Gourmet Food",
  (
    "gluten free", "low sodium", "usda organic", "nut reduced", "sugar cut",
    "plant based", "shelf stable", "keto diet", "whole grain", "hand picked",
    "slow roasted", "individually wrapped",
  ),
  {
    "coffee": ("Drinks › Coffee", ("flavor", "weight"), (7, 48)),
    "green tea": ("Drinks › Tea", ("flavor",), (4, 32)),
    "protein shake": ("Drinks › Shakes", ("flavor",), (9, 65)),
    "granola": ("Breakfast › Cereal", ("flavor", "weight"), (5, 36)),
    "peanut butter": ("Breakfast › Spreads", ("flavor", "weight"), (4, 30)),
    "crackers": ("Snacks › Crackers", ("flavor",), (3, 24)),
    "popcorn": ("Snacks › Popcorn", ("flavor",), (3, 22)),
    "almonds": ("Snacks › Nuts", ("flavor", "weight"), (6, 44)),
    "pasta sauce": ("Pantry › Sauces", ("weight",), (3, 21)),
    "olive oil": ("Pantry › Oils", ("volume",), (8, 55)),
  },
)  # fmt: skip

KINDS = tuple(
  Kind(query, f"{shop.path} › {aisle}", shop.attributes, groups, prices)
  for shop in (_FASHION, _BEAUTY, _ELECTRONICS, _HOME, _GROCERY)
  for query, (aisle, groups, prices) in shop.kinds.items()
)

BRANDS = tuple(
  f"{start}{end}"
  for start in ("nor", "vel", "bra", "lum", "tor", "kes", "mir", "fal")
  for end in ("dan", "vik", "ora", "tex", "lin", "mo", "bay", "sen")
)
