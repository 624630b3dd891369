"""The table of claims: sizes, power and costs, from kept scores."""

import math
import pathlib

import numpy as np
import pytest
from scipy import stats

from agentrl_jax.errors import ConfigError
from launch.comparisons import claims
from launch.comparisons.statistics import paired_difference

LINE = "Task normalisation | 5.6 | a.csv rl greedy dbbench: norm - none"
HEAD = "arm,seed,state,stage,mode,task,n,success,low,high,reward"
NORM, NONE = (0.50, 0.53, 0.49, 0.52), (0.40, 0.45, 0.38, 0.41)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  rows = [
    f"{arm},{seed},finished,rl,greedy,dbbench,512,{share},0,1,{share}"
    for arm, shares in (("norm", NORM), ("none", NONE))
    for seed, share in enumerate(shares)
  ]
  (tmp_path / "a.csv").write_text("\n".join([HEAD, *rows]))
  costs = [
    f"{arm},{seed},hours,0.25" for arm in ("norm", "none") for seed in range(4)
  ]
  (tmp_path / "a_diagnostics.csv").write_text(
    "\n".join(["arm,seed,diagnostic,value", *costs])
  )
  return tmp_path


def test_a_row_has_what_was_found_and_what_it_cost(folder):
  ((label, size, here, seeds, cells, hours, could),) = claims.rows(LINE, folder)
  assert (label, size, seeds) == ("Task normalisation", "+5.6", "4")
  assert here.startswith("+10.0 (+7.7 to ")
  assert (cells, hours) == ("8", "2.0")
  assert could.startswith("yes (")


def test_a_small_size_could_not_be_shown(folder):
  line = LINE.replace("5.6", "0.5")
  assert claims.rows(line, folder)[0][-1].startswith("no (")


def test_without_a_size_there_is_no_power(folder):
  assert claims.rows(LINE.replace("5.6", "-"), folder)[0][-1] == ""


def test_costs_that_are_not_kept_are_not_invented(folder):
  (folder / "a_diagnostics.csv").unlink()
  assert claims.rows(LINE, folder)[0][4:6] == ["", ""]


@pytest.mark.parametrize(
  "line",
  [
    "Task normalisation | 5.6 | a.csv rl greedy dbbench",
    LINE.replace("| 5.6", "| much"),
    LINE.replace("| 5.6", ""),
    LINE.replace("none", "nothing"),
    LINE.replace("dbbench", "webshop"),
    LINE.replace("greedy", "sampled"),
  ],
)
def test_a_line_that_names_nothing_is_refused(folder, line):
  with pytest.raises(ConfigError):
    claims.rows(line, folder)


@pytest.mark.parametrize("size", [0.0, 0.05, 0.1])
def test_power_is_the_share_of_simulated_tests_that_find_the_size(size):
  spread, seeds = 0.06, 6
  random = np.random.default_rng(0)
  drawn = size + spread * random.standard_normal((20_000, seeds))
  found = float((stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05).mean())
  deviations = stats.norm.ppf((np.arange(seeds) + 0.5) / seeds)
  deviations *= spread / deviations.std(ddof=1)
  difference = paired_difference([0.0] * seeds, deviations.tolist())
  assert claims.power(size, difference) == pytest.approx(found, abs=0.01)


def test_power_of_one_seed_is_not_known():
  assert math.isnan(claims.power(0.05, paired_difference([0.1], [0.2])))
  agree = paired_difference([0.1, 0.1], [0.2, 0.2])
  assert math.isnan(claims.power(0.05, agree))
