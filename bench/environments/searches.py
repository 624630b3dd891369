"""Speed of WebShop's search index, against SQLite's full-text index.

  python -m bench.environments.searches
  python -m bench.environments.searches --products 1000 100000 --queries 2000

Shops are generated; a small one is in memory, a large one on disk, as in the
environment. Both indices hold the same texts and answer the same queries, the
first words of titles. Our search returns up to 50 products with their texts,
SQLite's their row numbers. Start-up is that of an existing store. Rates are per
second of processor time, milliseconds are wall time.
"""

import argparse
import contextlib
import pathlib
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence

from rich.table import Table

from bench.environments import generated_listings
from bench.environments.episodes import quantiles_ms, resident_kib
from environments.webshop.listings.loader import Listings
from environments.webshop.shop.catalogue import Catalogue
from launch.processes.terminal import plain_console

WORDS = 5  # of a query
BARS = {1_000: "1,000 searches/s", 100_000: "p99 of 50 ms"}


def peer(catalogue: Catalogue) -> sqlite3.Connection:
  """SQLite's FTS5 with Porter's stemmer, in memory, on the same texts."""
  connection = sqlite3.connect(":memory:")
  connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize=porter)")
  connection.executemany(
    "INSERT INTO t VALUES (?)",
    ((product.indexed_text,) for product in catalogue.products),
  )
  return connection


def timed(
  search: Callable[[str], object], queries: Sequence[str]
) -> tuple[float, tuple[float, float]]:
  """Measures searches per second, and median and p99 in ms."""
  seconds = []
  begun = time.process_time()
  for query in queries:
    start = time.perf_counter()
    search(query)
    seconds.append(time.perf_counter() - start)
  taken = time.process_time() - begun
  return len(queries) / taken, quantiles_ms(seconds)


def _fts(connection: sqlite3.Connection, query: str) -> list[object]:
  """Finds the best texts with any of the words, by BM25."""
  words = " OR ".join(f'"{word}"' for word in query.split())
  return connection.execute(
    "SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT 50", (words,)
  ).fetchall()


def measure(num_products: int, num_queries: int, table: Table) -> None:
  """Measures both indices on the same products and queries."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "products.jsonl"
    generated_listings.write(path, num_products=num_products)
    Listings(str(path), cache=folder)  # builds what is kept on disk
    begun, before = time.monotonic(), resident_kib()
    catalogue = Listings(str(path), cache=folder).catalogue
    catalogue.search("warm")
    start_timeout_s, kib = time.monotonic() - begun, resident_kib() - before
    dice = random.Random(0)
    queries = [
      " ".join(dice.choice(catalogue.products).title.split()[:WORDS])
      for _ in range(num_queries)
    ]
    with contextlib.closing(peer(catalogue)) as fts:
      ours = timed(catalogue.search, queries)
      theirs = timed(lambda query: _fts(fts, query), queries)
  table.add_row(
    f"{num_products:,}",
    f"{start_timeout_s:.2f}",
    f"{kib / 1024:.0f}",
    f"{ours[0]:,.0f}",
    "{:.2f}, {:.2f}".format(*ours[1]),
    f"{theirs[0]:,.0f}",
    "{:.2f}, {:.2f}".format(*theirs[1]),
    f"{ours[0] / theirs[0]:.1f}",
    BARS.get(num_products, ""),
  )


def main() -> None:
  """Parses the command line and prints all rows."""
  parser = argparse.ArgumentParser(
    prog="python -m bench.environments.searches",
    description=__doc__.partition("\n")[0],
  )
  parser.add_argument("--products", nargs="+", type=int, default=list(BARS))
  parser.add_argument("--queries", type=int, default=2000)
  args = parser.parse_args()
  table = Table(
    "products",
    "start s",
    "MiB",
    "searches/s",
    "ms, p99",
    "FTS5/s",
    "ms, p99",
    "ratio",
    "bar",
  )
  for num_products in args.products:
    measure(num_products, args.queries, table)
  plain_console(width=120).print(table)


if __name__ == "__main__":
  main()
