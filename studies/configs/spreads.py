"""Task normalisation where the advantages of two tasks differ in spread.

  python -m launch.sweep --ablation=studies/configs/spreads.py \\
    --first_seed=1 --seeds=8

AgentRL (arXiv:2510.04206, eq. 1) divides the advantages of each task by their
standard deviation. Every group is kept and none is divided by its own std, so
that there is something to even out: `small` divides WebShop's advantages by 4,
`rare` leaves one of its groups in 4 a reward, which halves their spread.
`weighted` doubles them in place of normalising (of `small`, four times as much
is `none`). Evaluations count what truly succeeded.
"""

from configs import arms, quickstart

ALTERED = "studies.altered_spreads:altered_group_advantage"
_PLAIN = {"advantage.task_center": False, "advantage.task_scale": False}


def _of(**settings: float):
  return {"advantage.estimator_settings": {"task": 1, **settings}}  # webshop


ARMS = {
  "norm": {},
  "none": _PLAIN,
  "norm_small": _of(factor=1 / 4),
  "none_small": _of(factor=1 / 4) | _PLAIN,
  "norm_rare": _of(paid=1 / 4),
  "none_rare": _of(paid=1 / 4) | _PLAIN,
  "weighted_rare": _of(paid=1 / 4, factor=2.0) | _PLAIN,
}


def get_config(arm: str = "norm"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "spreads"
  c.advantage.update(keep="all", estimator=ALTERED)
  c.train.steps = 12  # in WebShop's mid-rise; DBBench is at its ceiling by then
  c.evaluation.update(num_tasks=512, num_untrained=4)
  return arms.apply_arm(c, ARMS, arm)
