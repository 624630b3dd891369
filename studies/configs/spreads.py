"""Task normalisation where the advantages of two tasks differ in spread.

  python -m launch.sweep --ablation=studies/configs/spreads.py --seeds=8

AgentRL (arXiv:2510.04206, eq. 1) divides the advantages of each task by their
standard deviation. Every group is kept and none is divided by its own std, so
that there is something to even out: `small` divides DBBench's advantages by 4,
`rare` leaves one of its groups in 4 or in 16 a reward (a spread of a half, and
of a quarter). `weighted` multiplies them by 4 in place of normalising; of
`small`, that is `none`. Evaluations count what truly succeeded.
"""

from configs import arms, quickstart

_ALTERED = "studies.altered_spreads:altered_group_advantage"
_PLAIN = {"advantage.task_center": False, "advantage.task_scale": False}


def _of(**settings: float):
  return {"advantage.estimator_settings": settings}


ARMS = {
  "norm": {},
  "none": _PLAIN,
  "norm_small": _of(factor=0.25),
  "none_small": _of(factor=0.25) | _PLAIN,
  "norm_rare_4": _of(paid=1 / 4),
  "none_rare_4": _of(paid=1 / 4) | _PLAIN,
  "norm_rare_16": _of(paid=1 / 16),
  "none_rare_16": _of(paid=1 / 16) | _PLAIN,
  "weighted_rare_16": _of(paid=1 / 16, factor=4.0) | _PLAIN,
}


def get_config(arm: str = "norm"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "spreads"
  c.advantage.update(keep="all", estimator=_ALTERED)
  return arms.apply_arm(c, ARMS, arm)
