"""How far the steps of an engine may run ahead of whoever reads them."""

import threading

from agentrl_jax.errors import DeadlineExceeded, GeneratorFault


class StepPipeline:
  """Lets a step be taken once it is of use to take it.

  At most `max_unread` steps are launched and not read. Beside that, no step is
  taken between a call that decodes under grammars and the reading of its
  tokens: its slots could not go on. The device has the calls launched after it
  to work on meanwhile.
  """

  def __init__(self, max_unread: int, deadline_s: float):
    self._max_unread, self._deadline_s = max_unread, deadline_s
    self._changed = threading.Condition()
    self._num_steps = self._num_calls = 0  # unread; of calls, those that count
    self._closed = False

  def step(self) -> None:
    """Waits until a step may be taken. Raises `GeneratorFault` once closed."""
    with self._changed:
      if not self._changed.wait_for(self._may_step, self._deadline_s):
        raise DeadlineExceeded(
          f"the engine waited {self._deadline_s} s for its results to be read; "
          "the thread that calls RolloutEngine.read has ended or hangs"
        )
      if self._closed:
        raise GeneratorFault("the engine was closed; no step is taken any more")
      self._num_steps += 1

  def launched(self, num_calls: int) -> None:
    """So many calls of this step have to be read before the next one."""
    with self._changed:
      self._num_calls += num_calls

  def read_call(self) -> None:
    """One of those was read."""
    with self._changed:
      self._num_calls -= 1
      self._changed.notify_all()

  def read_step(self) -> None:
    """A step was read as a whole."""
    with self._changed:
      self._num_steps -= 1
      self._changed.notify_all()

  def close(self) -> None:
    """Nobody waits any more, and no step is taken."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()

  def _may_step(self) -> bool:
    has_room = self._num_steps < self._max_unread and not self._num_calls
    return self._closed or has_room
