"""Word tables of generated shops: kinds of products, options, paraphrases.

Words are short, common and in lower case, so that a small vocabulary covers
them. By the reward's fuzzy comparison, no two attributes of a department match,
and no two option values of a kind; otherwise a wrong choice could be rewarded.
No word of a paraphrase occurs in a listing, so a search for a customer's words
does not match the attribute. Tests check these rules.
"""

import dataclasses
from collections.abc import Mapping

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
  """One kind of product, with its attributes and option groups."""

  query: str
  category: str
  attributes: tuple[str, ...]
  groups: tuple[str, ...]  # of options
  prices: tuple[int, int]  # dollars, lowest and highest


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

# Each clause follows "that": "a shirt that can go in the laundry".
PARAPHRASES: Mapping[str, tuple[str, str]] = {
  # Clothing, shoes and jewelry
  "machine wash": ("can go in the laundry", "needs no scrubbing"),
  "slim fit": ("hugs my figure", "must not be baggy"),
  "long sleeve": ("covers both arms", "reaches my wrists"),
  "quick drying": ("will not stay damp", "needs no hours on a clothesline"),
  "cotton lining": ("must be cosy within", "has a soft inside"),
  "rubber sole": ("will not slide on wet ground", "grips the floor below me"),
  "elastic waist": ("stretches around my belly", "gives way after dinner"),
  "moisture wicking": ("keeps sweat away", "helps when i perspire"),
  "faux fur": ("must be fluffy as a bear", "looks like an animal"),
  "high waist": ("covers my navel", "comes up to my ribs"),
  "hand stitched": ("was sewn without machinery", "a tailor sewed"),
  "wool blend": ("comes partly from sheep", "must be part fleece"),
  "memory foam": ("remembers my shape", "molds itself to me"),
  "zipper pocket": ("keeps coins from falling", "closes over my keys"),
  # Beauty
  "cruelty free": ("no rabbit suffered for", "harms no animals"),
  "long lasting": ("will endure all day", "needs no second coat"),
  "paraben free": ("has no harsh preservatives", "must be kept fresh gently"),
  "sensitive skin": ("will not irritate me", "must be mild"),
  "natural oils": ("comes from pressed seeds", "has nothing synthetic"),
  "travel sized": ("may come on an airplane", "must be tiny enough for trips"),
  "anti aging": ("fights wrinkles", "makes me look younger"),
  "deep cleansing": ("gets every bit of dirt away", "gets into pores"),
  "aloe vera": ("has a desert succulent", "cools a sunburn"),
  "clinically tested": ("doctors have tried", "has medical evidence"),
  "vitamin rich": ("nourishes me", "has many nutrients"),
  "sulfate removed": ("hardly bubbles", "spares me harsh suds"),
  # Electronics
  "fast charging": ("fills its battery in minutes", "must be ready soon"),
  "noise cancelling": ("keeps chatter away", "must be good in loud trains"),
  "easy install": ("a beginner gets going", "must be simple at setup"),
  "water resistant": ("survives rain", "may get splashed"),
  "plug play": ("needs no driver software", "works at once"),
  "stereo sound": ("has left and right channels", "must use two channels"),
  "touch screen": ("obeys my fingers", "must react when tapped"),
  "gold plated": ("has precious metal contacts", "will never corrode"),
  "heavy duty": ("takes rough treatment", "must be robust"),
  "carbon fiber": ("must be light yet stiff", "uses racing material"),
  "night vision": ("sees in darkness", "works after sunset"),
  "hands operated": ("has manual controls", "must use knobs"),
  # Home
  "easy assemble": ("goes together without tools", "i can build alone"),
  "space saving": ("must be compact", "suits a tiny room"),
  "solid wood": ("comes from real trees", "is timber throughout"),
  "stainless steel": ("will not rust", "is shiny metal"),
  "eco friendly": ("is kind to forests", "is good for our planet"),
  "dishwasher proof": ("an appliance may clean", "i need not rinse myself"),
  "hand painted": ("an artist decorated", "shows brushwork"),
  "non slip": ("must stay where i put it", "will not slide around"),
  "storage drawers": ("has room for my stuff", "must hold many things"),
  "high density": ("is firm", "will not sag"),
  "fade resistant": ("keeps its look in sunshine", "will not bleach"),
  "double sided": ("i can turn over", "is reversible"),
  # Grocery
  "gluten free": ("suits celiacs", "has nothing from barley or rye"),
  "low sodium": ("suits weak hearts", "is good for blood pressure"),
  "usda organic": ("grew without pesticides", "has a government seal"),
  "nut reduced": ("is safer with allergies", "my allergic son may try"),
  "sugar cut": ("is not so sweet", "suits diabetics"),
  "plant based": ("suits vegans", "has nothing from animals"),
  "shelf stable": ("needs no fridge", "keeps for years"),
  "keto diet": ("has hardly any carbs", "must be mostly fat"),
  "whole grain": ("has bran and germ", "has plenty of fibre"),
  "hand picked": ("was harvested without machinery", "people chose"),
  "slow roasted": ("was many hours above gentle heat", "took hours in an oven"),
  "individually wrapped": ("comes in single portions", "is packed one by one"),
}
