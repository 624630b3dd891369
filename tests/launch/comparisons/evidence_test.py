"""Tables of pages are those of the numbers in studies/evidence."""

import csv
import pathlib

import numpy as np
import pytest

from launch.comparisons.diagnostics import read_diagnostics
from launch.comparisons.markdown import filled

ROOT = pathlib.Path(__file__).parents[3]
STUDIES = ROOT / "studies"


@pytest.mark.parametrize(
  "name",
  ["docs/quickstart.md", "studies/experiments.md", "studies/siblings.md"],
)
def test_tables_of_a_page_equal_the_evidence(name):
  page = ROOT / name
  text = page.read_text(encoding="utf-8")
  command = f"python -m launch.report --fill {name}"
  assert filled(text, page.parent) == text, command


@pytest.mark.parametrize(
  "cores, label",
  [("", "a core for each side"), ("_shared_cores", "shared cores")],
)
def test_speedup_of_asynchronous_training_is_that_of_the_evidence(cores, label):
  measured, baseline = (
    read_diagnostics(
      STUDIES / "evidence" / f"asynchronous{name}_diagnostics.csv"
    )
    for name in ("", cores)
  )
  cells = []
  for minutes in (
    "minutes after the first update",
    "minutes of RL",
    "minutes_to_success/60",
  ):
    asynchronous, synchronous = (
      np.array([runs[arm][seed][minutes] for seed in range(3)])
      for runs, arm in ((measured, "one"), (baseline, "synchronous"))
    )
    seeds = ", ".join(f"{ratio:.2f}" for ratio in synchronous / asynchronous)
    speedup = synchronous.mean() / asynchronous.mean()
    cells.append(f"{speedup:.2f} ({seeds})")
  row = f"| against synchronous, {label} | {' | '.join(cells)} |"
  assert row in (STUDIES / "experiments.md").read_text(encoding="utf-8")


def test_spreads_of_two_tasks_are_those_of_the_evidence():
  stds = {"dbbench": {}, "webshop": {}}
  path = STUDIES / "evidence" / "rare_reward_spreads.csv"
  with path.open(encoding="utf-8") as file:
    for row in csv.DictReader(file):
      stds[row["task"]][row["version"]] = float(row["std"])
  dbbench, webshop = stds.values()
  ratios = [webshop[v] / dbbench[v] for v in dbbench if v in webshop]
  text = (STUDIES / "experiments.md").read_text(encoding="utf-8")
  page = " ".join(text.split())
  assert f"in {len(ratios)} batches of a run of `norm`" in page
  spread = f"({min(ratios):.2f} to {max(ratios):.2f};"
  assert f"{np.mean(ratios):.2f} times DBBench's {spread}" in page
