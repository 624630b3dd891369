"""Options of Harbor tasks, with their defaults."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import ConfigError
from environments.options import MachineLimits


@dataclasses.dataclass(frozen=True, kw_only=True)
class HarborOptions(MachineLimits):
  """Options of `Harbor`, and the limits of its machines.

  A task's own limits (`cpus`, `memory_mb`, `storage_mb`) replace those here.
  """

  source: str = ""  # folders of tasks, as splits; "" generates tasks
  skip: bool = False  # leave out tasks that cannot be played, with a warning
  engine: Any = "docker"  # "sandbox" (Linux namespaces), or a `MachineEngine`
  image: str = ""  # of `bases`; "" is agentrl_jax/os_interaction
  rootfs: str = ""  # of the sandbox; "" is the one in the user's cache
  # Names after FROM that stand for `image`, or for the sandbox's `rootfs`: the
  # rest of such a Dockerfile is carried out when a machine starts.
  bases: Sequence[str] = ("agentrl_jax/os_interaction",)
  num_warm: int = 0  # machines of `image` started ahead of their sessions
  max_rounds: int = 16  # answers of the policy until the episode ends
  command_limit_s: float = 30.0  # of one command of the policy
  test_limit_s: float = 240.0  # at most; a task's own limit may be shorter
  max_output_chars: int = 2000  # of a reply
  num_tasks: int = 1 << 20  # generated, of train and of test
  kinds: Sequence[str] | None = None  # of generated tasks; None: all

  def __post_init__(self) -> None:
    super().__post_init__()
    names = ("max_rounds", "command_limit_s", "test_limit_s")
    require_positive(**{name: getattr(self, name) for name in names})
    if self.max_output_chars < 100:
      raise ConfigError(
        f"max_output_chars={self.max_output_chars} must be 100 or more"
      )
