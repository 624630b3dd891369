"""Tables of pages are those of the numbers in studies/evidence."""

import csv
import pathlib

import numpy as np
import pytest

from launch.comparisons.diagnostics import ALARM, read_diagnostics
from launch.experiments.claims import read_costs
from launch.experiments.markdown import filled
from launch.reports import measured

ROOT = pathlib.Path(__file__).parents[3]
STUDIES = ROOT / "studies"
PAGES = sorted(
  [ROOT / "README.md", *ROOT.glob("docs/*.md"), *STUDIES.glob("*.md")]
)


@pytest.mark.parametrize(
  "page",
  [page for page in PAGES if "<!-- end -->" in page.read_text("utf-8")],
  ids=lambda page: page.name,
)
def test_tables_of_a_page_equal_the_evidence(page):
  text = page.read_text(encoding="utf-8")
  command = f"python -m launch.report --fill {page.relative_to(ROOT)}"
  assert filled(text, page.parent) == text, command


def test_no_evidence_is_of_uncommitted_code_or_of_no_use():
  pages = "".join(page.read_text("utf-8") for page in PAGES)
  pages += pathlib.Path(__file__).read_text("utf-8")
  for path in sorted((STUDIES / "evidence").glob("*.csv")):
    assert path.stem.removesuffix("_diagnostics") in pages, path
    assert "uncommitted" not in path.read_text("utf-8"), path


def words_of(page):
  return " ".join((ROOT / page).read_text("utf-8").split())


def quickstart(mode, stage):
  """Returns the success of the quickstart by task and seed, in percent."""
  with (STUDIES / "evidence/merging.csv").open(encoding="utf-8") as file:
    found = [
      100 * float(row["success"])
      for row in csv.DictReader(file)
      if (row["arm"], row["mode"], row["stage"]) == ("both", mode, stage)
    ]
  assert len(found) == 10
  return np.array(found)


def test_sentences_about_the_quickstart_are_those_of_the_evidence():
  readme, page = words_of("README.md"), words_of("docs/quickstart.md")
  for mode in ("greedy", "sampled"):
    before, after = (quickstart(mode, stage) for stage in ("warm_start", "rl"))
    rise = f"from {before.mean():.0f} % to {after.mean():.0f} %"
    assert rise in readme, rise
  rise = (
    f"from {before.min():.0f} to {before.max():.0f} % (mean "
    f"{before.mean():.0f}) to {after.min():.0f} to {after.max():.0f} % (mean "
    f"{after.mean():.0f})"
  )
  assert rise in page, rise
  means = f"{quickstart('greedy', 'rl').mean():.1f} and {after.mean():.1f} %"
  assert means in page, means


def test_sentence_about_a_published_model_is_that_of_the_evidence():
  before, after = (
    np.mean(
      [
        float(each["percent"])
        for each in measured.read(STUDIES / "evidence/real_model.csv")
        if (each["task"], each["mode"]) == ("word_problems", "greedy")
        and each["stage"] == stage
      ]
    )
    for stage in ("untouched", "rl")
  )
  rise = f"from {before:.0f} % to {after:.0f} % greedy"
  assert rise in words_of("README.md"), rise


def test_sentences_about_layouts_are_those_of_the_evidence():
  rows = measured.read(STUDIES / "evidence/asynchronous_layouts.csv")

  def gains(sigma, versions, over="colocated"):
    """Returns the rates over those of another arm, at each ratio."""
    rates = {
      (row["arm"], row["max_staleness"], row["ratio"]): float(row["rate"])
      for row in rows
      if float(row["sigma"]) == sigma
    }
    return [
      rate / rates[over, "0", ratio]
      for (arm, most, ratio), rate in rates.items()
      if (arm, most) == ("asynchronous", str(versions))
    ]

  def span(*found):
    values = [value for each in found for value in each]
    return f"{min(values):.2f} to {max(values):.2f}"

  page, table = (
    words_of("studies/experiments.md"),
    words_of("docs/experiments.md"),
  )
  for sigma, spread in ((0.5, "0.19"), (1.0, "0.46"), (1.5, "1.03")):
    assert f"{span(gains(sigma, 4))} at" in table
    assert f"at {spread}" in table or f"of {spread}" in table
  alike = [gains(0.0, versions) for versions in (1, 2, 4)]
  assert f"episodes are alike ({span(*alike)}:" in page
  assert f"the default ({span(gains(0.5, 1))})" in page
  assert f"σ = 1 ({span(gains(1.0, 4))} with four versions)" in page
  assert f"σ = 1.5 ({span(gains(1.5, 4))})" in page
  uneven = [
    [gains(sigma, versions, "oversampled") for sigma in (1.0, 1.5)]
    for versions in (1, 4)
  ]
  assert f"{span(*uneven[0])} times the rate of synchronous" in page
  assert f"four versions gain {span(*uneven[1])}." in page
  others = measured.read(STUDIES / "evidence/asynchronous_assumptions.csv")
  quarter, whole, full, half = (
    float(row["speed_up"]) for row in others if row["max_staleness"] == "4"
  )
  ours = gains(1.0, 4)[2]
  assert f"{ours:.2f} at σ = 1 becomes {quarter:.2f} or {whole:.2f} by" in page
  assert (
    f"have {full:.2f} to gain with equal episodes and {half:.2f} at" in page
  )
  for sigma in (1.0, 1.5):
    one, two, four = (np.array(gains(sigma, n)) - 1 for n in (1, 2, 4))
    assert (two / four).min() > 0.89  # nine tenths, and
    assert (one / four).min() > 1 / 3 and (one / four).max() < 0.6


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


def test_sentences_about_collapse_are_those_of_the_evidence():
  arms = read_diagnostics(STUDIES / "evidence" / "collapse_diagnostics.csv")
  updates = 40
  ends = {
    (arm, seed): (int(found["last update with a success"]), int(found[ALARM]))
    for arm, seeds in arms.items()
    for seed, found in seeds.items()
  }
  lost = {key: end for key, end in ends.items() if end[0] < updates}
  assert all(sum(arm == a for a, _ in lost) == 5 for arm in arms)
  after = [last + 1 for last, _ in lost.values()]
  alarms = [
    alarm + 1 - last for last, alarm in lost.values() if alarm < updates
  ]
  others = [key for key in ends.keys() - lost.keys() if ends[key][1] < updates]
  page = words_of("studies/siblings.md")
  assert f"the {min(after)}th to the {max(after)}rd" in page
  assert (
    f"raised in {len(alarms)} of the {len(lost)} runs that collapsed, "
    f"{min(alarms)} to {max(alarms)} updates after the last success"
  ) in page
  assert len(others) == 1


def test_the_table_of_learning_rates_is_that_of_the_evidence():
  with (STUDIES / "evidence/learning_rates.csv").open(encoding="utf-8") as file:
    found = [
      row
      for row in csv.DictReader(file)
      if (row["mode"], row["stage"]) == ("greedy", "rl")
    ]
  page = (STUDIES / "experiments.md").read_text("utf-8")
  for name in ("AgentRL", "GSPO", "CISPO", "RLOO"):
    cells = [name]
    for suffix in ("_slow", "", "_fast"):
      arm = f"{name.lower()}{suffix}"
      scores = [float(row["success"]) for row in found if row["arm"] == arm]
      assert len(scores) == 4, arm  # two tasks, two seeds
      cells.append(f"{100 * sum(scores) / 4:.1f}")
    assert f"| {' | '.join(cells)} |" in page


def test_the_cost_of_all_comparisons_is_that_of_the_evidence():
  costs = read_costs(STUDIES / "evidence" / "costs.csv").values()
  cells, hours = (sum(each) for each in zip(*costs, strict=True))
  page = (STUDIES / "experiments.md").read_text(encoding="utf-8")
  said = f"{cells} cells, {hours:.1f} core hours in all"
  assert said in " ".join(page.split())
