"""Merges models that were trained from one base into one Hugging Face folder.

  python -m launch.merge --base=qwen --experts=dbbench,webshop --to=merged
  python -m launch.merge --base=qwen --experts=a,b --to=merged --rule=ties

All are Hugging Face folders, as `launch.export` writes them, of one
architecture. The result can be served, exported and trained on as any model
(`pretrained.path`). The rules are those of `agentrl_jax.model.merging`. One
tensor of each model is in memory at a time. Export the experts in float32: in
bfloat16 small changes are lost.

Prints how much each expert changed, and how much of that others changed too:
where nearly all is shared, `ram` is the mean.
"""

import pathlib

from absl import flags

from agentrl_jax.model.merging import CHANGED, RULES, MergeRule
from launch.config import command_line
from launch.processes.terminal import plain_console
from launch.storage.merged_folder import merge_folders

_BASE = flags.DEFINE_string(
  "base", None, "The model that all experts were trained from.", required=True
)
_EXPERTS = flags.DEFINE_list("experts", None, "Their folders.", required=True)
_TO = flags.DEFINE_string("to", None, "The folder to write.", required=True)
_RULE = flags.DEFINE_enum("rule", "mean", RULES, "How to merge.")
_SCALE = flags.DEFINE_float("scale", 1.0, "Of changes, for all but the mean.")
_KEEP = flags.DEFINE_float("keep", 0.2, "Share of changes, of ties and dare.")
_BOOST = flags.DEFINE_float("boost", 1.2, "Largest lambda of ram_plus.")
_CHANGED = flags.DEFINE_enum(
  "changed", "bfloat16", list(CHANGED), "When an entry counts as changed."
)
_THRESHOLD = flags.DEFINE_float("threshold", 1e-5, "For --changed=threshold.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the random choices of dare.")


def main() -> None:
  """Merges what the flags name, and prints the overlaps."""
  rule = MergeRule(
    name=_RULE.value,
    scale=_SCALE.value,
    keep=_KEEP.value,
    boost=_BOOST.value,
    changed=_CHANGED.value,
    threshold=_THRESHOLD.value,
    seed=_SEED.value,
  )
  to = pathlib.Path(_TO.value)
  whole = merge_folders(
    pathlib.Path(_BASE.value), [*map(pathlib.Path, _EXPERTS.value)], to, rule
  )
  console = plain_console(soft_wrap=True)
  for name, found in whole.items():
    changed = found.unique + found.shared
    console.print(
      f"{name}: {changed / found.total:.1%} of its numbers changed, "
      f"{found.shared / max(changed, 1):.1%} of these in another expert too"
    )
  console.print(f"{to}: {rule.name} of {len(whole)} models")


if __name__ == "__main__":
  command_line.run(main)
