"""Writes a file of generated listings, for shops larger than memory.

  python -m bench.environments.generated_listings \
    --num_products 100000 --path /tmp/products.jsonl

The file is for measurements of shops with millions of products. Descriptions
are filled with invented words, so that the index is as large as one of real
listings. A few words are common and most are rare, as in any language.
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
NUM_RANKS = 1 << 18  # of invented words
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
  """Writes listings deterministically, compressed if the path ends in .gz.

  Args:
    num_words: invented words per description.
    form: "lines", an object per line, or "array", one array of them.
  """
  start, separator, end = FORMS[form]
  open_ = gzip.open if path.suffix == ".gz" else open
  with open_(path, "wt", encoding="utf-8") as file:
    file.write(start)
    for number, product in enumerate(draw(num_products, num_words, seed)):
      text = json.dumps(row_of(product), ensure_ascii=False)
      file.write(f"{separator if number else ''}{text}")
    file.write(end)


def draw(num_products: int, num_words: int, seed: int) -> Iterator[Product]:
  """Draws products with consecutive ids, half of them of each split."""
  rng = random.Random(f"generated file/{seed}")
  for number in range(0, num_products, PER_DRAW):
    split = SPLITS[number // PER_DRAW % len(SPLITS)]
    for i, product in enumerate(make_products(rng, split, PER_DRAW), number):
      if i < num_products:
        yield dataclasses.replace(
          product,
          id=f"B{i:09d}",
          description=f"{product.description} {_filler(rng, num_words)}",
        )


def _filler(rng: random.Random, num_words: int) -> str:
  """Draws invented words by Zipf's law: the n-th has a share of about 1/n."""
  ranks = (int(NUM_RANKS ** rng.random()) for _ in range(num_words))
  return " ".join(map(_word, ranks))


@functools.lru_cache(NUM_RANKS)
def _word(rank: int) -> str:
  syllables = ""
  while rank:
    rank, syllable = divmod(rank, len(_CONSONANTS) * len(_VOWELS))
    consonant, vowel = divmod(syllable, len(_VOWELS))
    syllables += _CONSONANTS[consonant] + _VOWELS[vowel]
  return f"{syllables}k"  # an ending that the stemmer keeps


def row_of(product: Product) -> dict[str, object]:
  """Writes the row that `products` reads as this product."""
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
