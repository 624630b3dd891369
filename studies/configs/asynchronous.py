"""Arms of asynchronous against synchronous training, for two models.

  python -m bench.system.asynchronous --model=quickstart
  python -m bench.system.asynchronous --model=models/SmolLM2-135M-Instruct

The arms say what waits for what; the bench gives each of them cores, shared or
divided. All turns are played by the newest version that there is, so that
`synchronous` trains on what its own version played, and nothing is evaluated
but for form: what counts are updates per minute.
"""

import ml_collections

from configs import arms, base, quickstart, smollm2

QUICKSTART = "quickstart"
SYNCHRONOUS = "synchronous"


def _ahead(groups: int, versions: int) -> dict[str, int]:
  """Lets groups wait for so many updates."""
  return {
    "admission.max_staleness": versions,
    "queue.max_groups": groups * (versions + 1),
  }


def make_arms(groups: int) -> dict[str, dict[str, int]]:
  """Returns the arms for batches of so many groups."""
  return {
    # Waits for every group, and starts none before its update.
    SYNCHRONOUS: {
      **_ahead(groups, 0),
      "admission.max_concurrent_groups": groups,
      "queue.max_age": -1,
      "rollouts.max_lag": 0,  # servers answer with the newest weights alone
    },
    "asynchronous": {
      **_ahead(groups, 1),
      "admission.max_concurrent_groups": groups,
    },
    "asynchronous_4": {
      **_ahead(groups, 4),
      "admission.max_concurrent_groups": groups,
    },
  }


ARMS = make_arms(quickstart.get_config().admission.groups_per_step)


def get_config(text: str = SYNCHRONOUS) -> ml_collections.ConfigDict:
  """`text`, after the colon on the command line, is ARM or ARM,FOLDER.

  FOLDER is that of SmolLM2 (`configs/smollm2.py`); without it the quickstart is
  trained.
  """
  arm, _, folder = text.partition(",")
  c = smollm2.get_config(folder) if folder else quickstart.get_config()
  c.name = "asynchronous"
  slots = c.engine.slots[:1]
  c.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  c.engine.slots = slots
  c.rollouts.poll_interval_s = 0.1
  during = ("num_tasks_during", "num_sampled_during")
  defaults = base.default_values()["evaluation"]
  c.evaluation.update({name: defaults[name] for name in during})
  c.evaluation.update(
    num_tasks=4, num_sampled=4, num_untrained=4, scripted=False, every=0
  )
  return arms.apply_arm(c, make_arms(c.admission.groups_per_step), arm)
