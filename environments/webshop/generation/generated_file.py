"""Writes a file of generated listings, for shops larger than memory.

  python -m environments.webshop.generation.generated_file \
    --num_products 100000 --path /tmp/products.jsonl

For measuring, and for trying out how a shop of millions behaves. Descriptions
are filled up with made-up words, so that the index is as large as one of real
listings; a few words are common and most are rare, as in any language.
"""

import argparse
import dataclasses
import functools
import gzip
import json
import pathlib
import random
from collections.abc import Iterator, Sequence

from agentrl_jax.data.split import SPLITS
from environments.webshop.generation.generator import make_products
from environments.webshop.shop.product import Product

PER_DRAW = 1000  # products drawn at a time, for one split
NUM_RANKS = 1 << 18  # of made-up words
_CONSONANTS, _VOWELS = "bdfglmnprstv", "aeiou"
FORMS = {"lines": ("", "\n", "\n"), "array": ("[\n", ",\n", "\n]\n")}


def write(
  path: pathlib.Path,
  *,
  num_products: int,
  num_words: int = 100,
  seed: int = 0,
  form: str = "lines",
) -> None:
  """Writes listings, a function of the arguments; packed if path ends in .gz.

  Args:
    num_words: of each description, besides those that say what it is.
    form: "lines", an object per line, or "array", one array of them.
  """
  begin, between, end = FORMS[form]
  open_ = gzip.open if path.suffix == ".gz" else open
  with open_(path, "wt", encoding="utf-8") as file:
    file.write(begin)
    for number, product in enumerate(draw(num_products, num_words, seed)):
      text = json.dumps(row_of(product), ensure_ascii=False)
      file.write(f"{between if number else ''}{text}")
    file.write(end)


def draw(num_products: int, num_words: int, seed: int) -> Iterator[Product]:
  """Products with ids that count up, half of them of each split."""
  rng = random.Random(f"generated file/{seed}")
  for number in range(0, num_products, PER_DRAW):
    split = SPLITS[number // PER_DRAW % len(SPLITS)]
    for i, product in enumerate(make_products(rng, split, PER_DRAW), number):
      if i < num_products:
        yield dataclasses.replace(
          product,
          id=f"B{i:09d}",
          description=f"{product.description} {_filling(rng, num_words)}",
        )


def _filling(rng: random.Random, num_words: int) -> str:
  """Words that mean nothing, the n-th commonest with a share of about 1/n."""
  ranks = (int(NUM_RANKS ** rng.random()) for _ in range(num_words))
  return " ".join(map(_word, ranks))


@functools.lru_cache(NUM_RANKS)
def _word(rank: int) -> str:
  syllables = ""
  while rank:
    rank, which = divmod(rank, len(_CONSONANTS) * len(_VOWELS))
    consonant, vowel = divmod(which, len(_VOWELS))
    syllables += _CONSONANTS[consonant] + _VOWELS[vowel]
  return f"{syllables}k"  # no ending that is cut off


def row_of(product: Product) -> dict[str, object]:
  """The row that `listing` reads as this product."""
  return {
    "asin": product.id,
    "category": product.department,
    "query": product.query,
    "product_category": product.category,
    "Title": product.title,
    "Description": product.description,
    "BulletPoints": product.features,
    "pricing": [product.price],
    "Price": product.price_tag,
    "Rating": product.rating,
    "options": product.options,
    "Attributes": product.attributes,
  }


def _parse(words: Sequence[str] | None = None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--path", type=pathlib.Path, required=True)
  parser.add_argument("--num_products", type=int, default=100_000)
  parser.add_argument("--num_words", type=int, default=100)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--form", choices=tuple(FORMS), default="lines")
  return parser.parse_args(words)


if __name__ == "__main__":
  write(**vars(_parse()))
