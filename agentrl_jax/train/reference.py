"""The frozen reference that the KL term pulls towards, if there is one."""

import dataclasses

import jax

from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.objective import Lesson
from agentrl_jax.train.token_logprobs import token_logprobs


class Reference:
  """Adds the reference's log-probabilities to lessons; none adds nothing."""

  def __init__(
    self,
    policy: Policy,
    params: Params | None,
    *,
    temperature: float,
    chunk_size: int,
  ):
    self._params = params

    def logprobs(params: Params, lesson: Lesson) -> jax.Array:
      return token_logprobs(
        policy,
        params,
        lesson.batch,
        temperature=temperature,
        chunk_size=chunk_size,
      )[0]

    self._logprobs = jax.jit(logprobs)

  def add_to(self, lesson: Lesson) -> Lesson:
    """The lesson with the reference's log-probability of every token."""
    if self._params is None:
      return lesson
    return dataclasses.replace(
      lesson, reference_logprob=self._logprobs(self._params, lesson)
    )
