r"""Merges the experts of a sweep, and scores the merges as the sweep's runs.

  python -m launch.sweep --folder=sweeps/merging --seeds=5 \
    --ablation=configs/ablations/one_policy_for_two.py
  python -m studies.merging --sweep=sweeps/merging
  python -m launch.report sweeps/merging sweeps/merging/merges/finals.csv

From one warm start per seed, the experts learn one task each, with as many
episodes as `both` has of that task: so a merge has cost as many episodes as
`both`. Each rule of `studies.merge_rules` has its default constants. The tasks,
their order and the seeds of an evaluation are those of the runs.

Writes `merges/finals.csv`, and prints the share of numbers that each expert
changed. What is there already is not played again.
"""

import argparse
import csv
import dataclasses
import json
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

import ml_collections
import numpy as np

from agentrl_jax.controller.evaluation import TaskScore, draw_tasks
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.model.hugging_face import tensor_files
from configs import base
from launch.config.settings import read_settings
from launch.export import export
from launch.processes.terminal import plain_console
from launch.reports.progress import StageProgress
from launch.run.environments import placed_environments
from launch.run.evaluation import (
  SPLIT,
  play_tasks,
  policy_player,
  scores_to_json,
)
from launch.serving.stored_service import served_folder
from launch.storage.compile_cache import compile_cache
from launch.storage.run_config import run_config
from studies.merge_rules import RULES, MergeRule, Overlap, merge, overlaps

CONSOLE = plain_console(soft_wrap=True)
ABOUT = "merge.json"  # how much each expert changed
# Of the config, what the files of a model replace.
_REPLACED = ("model", "tokenizer", "chat")
_MODES = ("greedy", "sampled")
_COLUMNS = ("n", "success", "low", "high", "reward")


@dataclasses.dataclass(frozen=True)
class Merging:
  """The experts of one seed, and where their merges are written."""

  experts: Sequence[pathlib.Path]  # folders of runs
  folder: pathlib.Path
  seed: int

  def merged(self, rule: str) -> pathlib.Path:
    """Merges the experts, unless that is done; returns the model's folder."""
    to = self.folder / f"{rule}-s{self.seed}"
    if not to.exists():
      warm_start = self._exported(self.experts[0], "warm_start")
      trained = [self._exported(run, "rl") for run in self.experts]
      merge_folders(warm_start, trained, to, MergeRule(name=rule))
    return to

  def config(self, model: pathlib.Path) -> ml_collections.ConfigDict:
    """Returns the experts' config, for the model of a folder."""
    config = run_config(self.experts[0])
    defaults = base.get_config()
    for section in _REPLACED:
      config[section] = defaults[section]
    config.pretrained.path = str(model)
    config.warm_start.update(epochs=0, copy_gain=0.0, store="")
    config.tasks.held_out = ()
    return config

  def _exported(self, run: pathlib.Path, stage: str) -> pathlib.Path:
    to = self.folder / "experts" / f"{run.name}_{stage}"
    if not to.exists():
      export(run, to, stage=stage, dtype="float32")
    return to


def merge_folders(
  base: pathlib.Path,
  experts: Sequence[pathlib.Path],
  to: pathlib.Path,
  rule: MergeRule,
) -> None:
  """Writes the merge of exported models as the folder `to`, and `ABOUT`."""
  origin = _arrays(base)
  models = {str(expert): _arrays(expert) for expert in experts}
  whole = dict.fromkeys(models, Overlap())
  for name, array in origin.items():
    of_experts = {key: arrays[name] for key, arrays in models.items()}
    for key, counted in overlaps(array, of_experts, rule).items():
      whole[key] += counted
  merged = [
    merge(
      array,
      {key: arrays[name] for key, arrays in models.items()},
      rule,
      whole=whole,
      array_name=name,
    )
    for name, array in origin.items()
  ]
  (path,) = tensor_files.tensor_files(base)  # small enough for one file
  shutil.copytree(base, to, ignore=shutil.ignore_patterns(path.name))
  entries = {name: (x.dtype, x.shape) for name, x in origin.items()}
  tensor_files.write_file(to / path.name, entries, iter(merged))
  experts_json = {key: vars(each) for key, each in whole.items()}
  (to / ABOUT).write_text(json.dumps({"experts": experts_json}, indent=2))


def _arrays(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads the tensors of an exported model."""
  ((path, names),) = tensor_files.tensor_files(folder).items()
  with tensor_files.TensorFile(path, names) as file:
    return {
      name: file.read(name, entry.shape, (slice(None),) * len(entry.shape))
      for name, entry in file.entries.items()
    }


def scores_of(
  config: ml_collections.ConfigDict, cache: pathlib.Path
) -> Iterator[tuple[str, dict[str, TaskScore]]]:
  """Plays the pretrained model of a config; yields the scores of each mode."""
  settings = read_settings(config)
  plan = settings.evaluation
  model = pathlib.Path(settings.pretrained).name
  with placed_environments(settings) as environments:
    drawn = draw_tasks(
      environments, split=SPLIT, num_tasks=plan.num_tasks, seed=settings.seed
    )
    for mode in _MODES:
      temperature = 0.0 if mode == "greedy" else plan.temperature
      with (
        compile_cache(cache, "compiled"),
        served_folder(config, settings) as service,
      ):
        tasks = plan.tasks_of("rl", mode, drawn)
        name = f"evaluation of {model}, {mode}"
        with StageProgress(name, len(tasks)) as show:
          yield (
            mode,
            play_tasks(
              policy_player(settings, environments, service, temperature),
              tasks,
              settings,
              plan,
              name=name,
              progress=lambda done, *_: show.update(done, {}),
            ),
          )


def rows_of(merging: Merging, rule: str) -> list[Mapping[str, object]]:
  """Returns the rows of `finals.csv` of one merge, played if need be."""
  path = merging.folder / f"{rule}-s{merging.seed}.json"
  if not path.exists():
    config = merging.config(merging.merged(rule))
    found = {
      mode: scores_to_json(scores)
      for mode, scores in scores_of(config, merging.folder)
    }
    path.write_text(json.dumps(found, indent=2))
  return [
    {
      "arm": rule,
      "seed": merging.seed,
      "state": "finished",
      "stage": "rl",
      "mode": mode,
      "task": task,
      **{column: score[column] for column in _COLUMNS},
    }
    for mode, scores in json.loads(path.read_text()).items()
    for task, score in scores.items()
  ]


def seeds_of(sweep: pathlib.Path, experts: Sequence[str]) -> list[int]:
  """Returns the seeds of which every expert has finished.

  Raises `ConfigError` if there is none.
  """
  done = [
    {
      int(path.parent.name.removeprefix(f"{arm}-s"))
      for path in sweep.glob(f"cells/{arm}-s*/summary.json")
    }
    for arm in experts
  ]
  if not (seeds := sorted(set.intersection(*done))):
    raise ConfigError(
      f"--sweep={sweep} has no seed of which {', '.join(experts)} have all "
      "finished: run the sweep first, or name other --experts"
    )
  return seeds


def overlap_line(model: pathlib.Path) -> str:
  """Returns how much each expert changed, and how much of it others did."""
  about = json.loads((model / ABOUT).read_text())
  parts = []
  for name, of in about["experts"].items():
    changed = of["unique"] + of["shared"]
    parts.append(
      f"{pathlib.Path(name).name} changed {changed / of['total']:.1%}, "
      f"{of['shared'] / max(changed, 1):.1%} of it with another"
    )
  return "; ".join(parts)


def main() -> None:
  """Merges, scores and writes what the flags name."""
  parser = argparse.ArgumentParser(
    prog="python -m studies.merging", description=__doc__.partition("\n")[0]
  )
  parser.add_argument("--sweep", type=pathlib.Path, required=True)
  parser.add_argument(
    "--experts", default="rl_without_dbbench,rl_without_webshop"
  )
  parser.add_argument("--rules", default=",".join(RULES))
  given = parser.parse_args()
  experts, rules = given.experts.split(","), given.rules.split(",")
  folder = given.sweep / "merges"
  rows: list[Mapping[str, object]] = []
  try:
    for seed in seeds_of(given.sweep, experts):
      cells = [given.sweep / "cells" / f"{arm}-s{seed}" for arm in experts]
      merging = Merging(cells, folder, seed)
      for rule in rules:
        found = rows_of(merging, rule)
        CONSOLE.print(f"{rule}-s{seed}: {_shown(found)}")
        rows += found
      CONSOLE.print(overlap_line(merging.merged(rules[0])))
  except AgentRLError as error:
    sys.exit(str(error))
  with (folder / "finals.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
  CONSOLE.print(f"{folder / 'finals.csv'}: {len(rules)} rules")


def _shown(rows: Sequence[Mapping[str, object]]) -> str:
  return ", ".join(f"{r['mode']} {r['task']} {r['success']:.1%}" for r in rows)


if __name__ == "__main__":
  main()
