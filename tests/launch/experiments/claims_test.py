"""The table of claims: sizes, power and costs, from kept scores."""

import pathlib

import pytest

from agentrl_jax.errors import ConfigError
from launch.experiments import claims

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
  (tmp_path / "costs.csv").write_text("scores,cells,core_hours\na.csv,8,2.0\n")
  return tmp_path


def test_a_row_has_what_was_found_and_what_it_cost(folder):
  (label, size, here, seeds, cells, hours, could), _ = claims.rows(LINE, folder)
  assert (label, size, seeds) == ("Task normalisation", "+5.6", "4")
  assert here.startswith("+10.0 (+7.0 to ")
  assert (cells, hours) == ("8", "2.0")
  assert could == "no (68 %)"


def test_a_size_that_was_found_could_be_shown(folder):
  line = LINE.replace("5.6", "10")
  assert claims.rows(line, folder)[0][-1].startswith("yes (9")


def test_a_small_size_could_not_be_shown(folder):
  line = LINE.replace("5.6", "0.5")
  assert claims.rows(line, folder)[0][-1].startswith("no (")


def test_a_loss_is_as_likely_to_be_found_as_a_gain(folder):
  gain, _ = claims.rows(LINE, folder)
  loss, _ = claims.rows(LINE.replace("5.6", "-5.6"), folder)
  assert loss[1] == "−5.6"
  assert loss[2:] == gain[2:]


def test_without_a_size_it_says_what_would_be_found(folder):
  could = claims.rows(LINE.replace("5.6", "-"), folder)[0][-1]
  size = could.removeprefix("finds ")
  found = claims.rows(LINE.replace("5.6", size), folder)[0][-1]
  assert found in ("yes (80 %)", "yes (81 %)", "no (79 %)")


def test_costs_that_are_not_kept_are_refused(folder):
  (folder / "costs.csv").write_text("scores,cells,core_hours\n")
  with pytest.raises(ConfigError, match="no costs of a.csv"):
    claims.rows(LINE, folder)


@pytest.mark.parametrize(
  "line",
  [
    "Task normalisation | 5.6 | a.csv rl greedy dbbench",
    LINE.replace("| 5.6", "| much"),
    LINE.replace("| 5.6", "| 1.2.3"),
    LINE.replace("| 5.6", "| ."),
    "",
    LINE.replace("| 5.6", ""),
    LINE.replace("none", "nothing"),
    LINE.replace("dbbench", "webshop"),
    LINE.replace("greedy", "sampled"),
  ],
)
def test_a_line_that_names_nothing_is_refused(folder, line):
  with pytest.raises(ConfigError):
    claims.rows(line, folder)


def test_a_reason_why_nothing_could_be_shown_stands_in_place_of_power(folder):
  line = f"{LINE} | the arms hardly differ"
  assert claims.rows(line, folder)[0][-1] == "no: the arms hardly differ"


def test_a_file_counts_once_in_the_total(folder):
  *_, total = claims.rows(f"{LINE}\n{LINE}", folder)
  assert total[4:6] == ["8", "2.0"]
