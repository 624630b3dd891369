"""verl's, RAGEN's and GMPO's own code, loaded from checkouts of its sources.

Both import a good deal of their frameworks (ray, omegaconf, tensordict) that
their formulas do not use. Those imports are met with empty stand-ins, so that
torch and numpy are all that is needed; the formulas themselves run unchanged.
"""

import importlib.util
import pathlib
import sys
import textwrap
import types
from typing import Any

COMMITS = {
  "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
  "RAGEN": "5eb79b82cecc31db5662ba3c96b752405692410b",
  # What was added later, by `--add`: verl's form of GMPO, and the authors'; by
  # `--add_dppo`: verl's DPPO.
  "verl, gmpo": "b178a3cd56f58b2d502255daba591e92833930a7",
  "GMPO": "205b2bf412f150cf96c29b33273b81bcd1a9b20f",
  "verl, dppo": "v0.8.0",
}


HIGHEST = -0.01  # the highest log-probability that DPPO is compared with


class Config(dict):
  """A config as the originals read it: attributes and `get`."""

  global_batch_info: dict[str, Any] = {}

  def __getattr__(self, name: str) -> Any:
    if name not in self:
      raise AttributeError(name)
    return self[name]


class AlgoConfig(Config):
  """verl's config of an algorithm."""


class ActorConfig(Config):
  """verl's config of an actor, which some losses insist on."""


def load_verl(checkout: pathlib.Path) -> tuple[Any, Any]:
  """verl's `core_algos` and `rollout_corr_helper`."""
  _stand_in("omegaconf", DictConfig=dict)
  _stand_in("tensordict", TensorDict=dict)
  _stand_in("transformers", PreTrainedTokenizer=object)
  _stand_in("verl")
  _stand_in(
    "verl.utils.device",
    get_device_name=lambda: "cpu",
    get_torch_device=lambda: None,
  )
  groupwise = _load(
    "verl.utils.groupwise", checkout / "verl/utils/groupwise.py"
  )
  torch_functional = _load(
    "verl.utils.torch_functional", checkout / "verl/utils/torch_functional.py"
  )
  _stand_in(
    "verl.utils",
    as_torch_index=groupwise.as_torch_index,
    group_mean_std=groupwise.group_mean_std,
    torch_functional=torch_functional,
  )
  _stand_in("verl.utils.import_utils", deprecated=lambda name: lambda f: f)
  _stand_in("verl.protocol", DataProto=dict)
  _stand_in("verl.trainer")
  _stand_in("verl.trainer.ppo")
  _stand_in("verl.trainer.config", AlgoConfig=AlgoConfig)
  _stand_in("verl.trainer.config.algorithm", RolloutCorrectionConfig=dict)
  _stand_in("verl.workers")
  _stand_in("verl.workers.config", ActorConfig=ActorConfig)
  _stand_in("verl.workers.config.actor", PolicyLossConfig=dict)
  folder = checkout / "verl/trainer/ppo"
  core = _load("verl.trainer.ppo.core_algos", folder / "core_algos.py")
  core.verl_F = torch_functional  # for RAGEN, which takes all names from here
  core.__all__ = [name for name in vars(core) if not name.startswith("__")]
  return core, _load("rollout_corr_helper", folder / "rollout_corr_helper.py")


def load_ragen(checkout: pathlib.Path) -> Any:
  """RAGEN's `core_algos`; load verl before."""
  return _load("ragen_core_algos", checkout / "ragen/trainer/core_algos.py")


def load_gmpo(checkout: pathlib.Path) -> types.CodeType:
  """The lines of GMPO's training loop that make `pg_losses` of one sequence.

  They read `self.args.cliprange`, `new_logps`, `mb_logps`, `mb_advantage` and
  `mb_response_masks`.
  """
  source = (checkout / "train_zero_math_gmpo.py").read_text()
  _, _, body = source.partition('critic_type_modify == "gmpo":\n')
  lines, last, _ = body.partition("pg_losses = -mb_advantage * ratio\n")
  return compile(textwrap.dedent(lines + last), "GMPO", "exec")


def _stand_in(name: str, **attributes: Any) -> None:
  module = types.ModuleType(name)
  vars(module).update(attributes)
  sys.modules[name] = module
  parent, _, child = name.rpartition(".")
  if parent in sys.modules:
    setattr(sys.modules[parent], child, module)


def _load(name: str, path: pathlib.Path) -> Any:
  specification = importlib.util.spec_from_file_location(name, path)
  if specification is None or specification.loader is None:
    raise FileNotFoundError(f"{path} is not a Python file")
  module = importlib.util.module_from_spec(specification)
  sys.modules[name] = module
  specification.loader.exec_module(module)
  return module
