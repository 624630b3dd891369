"""Runs a verifier again that did not come to its end.

A loaded host makes tests late, and a machine can die under them: neither says
anything of the policy. So they run again on another clean machine with the
policy's files, and beside it a control runs without any. If the control does
not end either, the hosts are at fault. If it ends, the policy's files keep the
tests from their end, and that is a failure: were it a fault, which is left out
of the group, a policy that cannot win would learn to hang its verifier.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentrl_jax.errors import EnvironmentFault
from environments.os_interaction.machines.machine import MachineLost

T = TypeVar("T")


class Unfinished(Exception):
  """A verifier ran longer than it may."""


async def to_the_end(
  run: Callable[[], Awaitable[T]],
  control: Callable[[], Awaitable[object]],
  name: str,
) -> T:
  """Returns what a verifier says, at the second run if the first is cut short.

  Raises `EnvironmentFault` if the control is cut short as well, and otherwise
  `Unfinished` or `MachineLost`, which are the policy's doing.
  """
  cut_short = (Unfinished, MachineLost)
  try:
    return await run()
  except cut_short:
    again, clean = await asyncio.gather(
      run(), control(), return_exceptions=True
    )
  if isinstance(again, cut_short) and isinstance(
    clean, (*cut_short, EnvironmentFault)
  ):
    raise EnvironmentFault(
      f"{name} came to no end, twice with the policy's files and once without "
      f"({clean}); look at the load of the host and of the engine"
    ) from again
  if isinstance(again, BaseException):
    raise again
  return again
