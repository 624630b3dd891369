"""One call of an episode: its prompt, its sampling and its record."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import Message, Status, Tool
from agentrl_jax.errors import PromptTooLong
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.conversation_cache import (
  CallContext,
  extend,
  render,
)
from agentrl_jax.rollout.openai.episodes.lines import EpisodeLine, Source
from agentrl_jax.rollout.openai.schema import CompletionRequest
from agentrl_jax.rollout.server.errors import ApiError

if TYPE_CHECKING:
  from agentrl_jax.rollout.openai.episodes.episode import Episode


class EpisodeCall(CallContext):
  """A call that is being answered; `number` counts the calls of the episode."""

  def __init__(self, episode: "Episode", role: str, digest: bytes):
    super().__init__(episode.limits)
    self._episode = episode
    self.role, self.digest = role, digest
    self.is_named = False  # the agent named the call's policy slot
    self.source: Source | None = None  # None until the prompt is known
    self.number = -1  # likewise

  @property
  def starts_line(self) -> bool:
    """True if the call starts a line of tokens."""
    return self.source is not None and self.source.line is None

  def claim(self, source: Source, number: int) -> None:
    """Takes the line until `release`."""
    self.source, self.number = source, number
    if source.line is not None:
      source.line.is_busy = True

  def release(self) -> None:
    """Gives the line back."""
    if self.source is not None and self.source.line is not None:
      self.source.line.is_busy = False

  def repeated(self) -> "Repeated | None":
    """Returns the recorded answer if this call was answered already."""
    line = self._episode.answered(self.digest)
    return Repeated(self, line) if line else None

  def answer_budget(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns what the call asks for, or what its line has left of it."""
    rules = self._episode.rules
    most = min(rules.max_tokens, self.limits.context)
    left = most - len(prompt)
    if left < 1:
      raise PromptTooLong(
        f"{len(prompt)} tokens stand before the answer, and an episode has "
        f"{most}: end it, as {Status.AGENT_CONTEXT_LIMIT.value!r}, or go on "
        "with a shorter history, as a line of its own (agents.max_lines)"
      )
    asked = request.answer_tokens or rules.max_answer_tokens
    return min(left, asked, rules.max_answer_tokens)

  def policy_slot(self, named: int | None) -> int:
    """Returns the policy slot that the call names, or else draws one."""
    self.is_named = named is not None
    if named is not None:
      return named
    return self._episode.draw(self._episode.spec.seed, self.number)

  def fill_in(self, request: CompletionRequest) -> CompletionRequest:
    """Returns the request at the run's temperature, with a seed of the call."""
    temperature = self._episode.rules.temperature
    changes: dict[str, float] = {"temperature": temperature}
    if request.seed is None:
      text = f"{self._episode.spec.seed} turn {self.number}"
      digest = hashlib.sha256(text.encode()).digest()
      changes["seed"] = int.from_bytes(digest[:8])
    return request.model_copy(update=changes)

  def check(
    self, request: CompletionRequest, prompts: Sequence[np.ndarray]
  ) -> None:
    """Refuses calls that the episode cannot record."""
    if request.n > 1 or len(prompts) > 1:
      raise ApiError(
        f"n={request.n} and {len(prompts)} prompts: an episode has one answer "
        "per call. Make several calls, each with its own `seed`, or play "
        "several episodes at once instead",
        param="n",
        code="unsupported_value",
      )
    self._refuse_other_draws(request)
    if self.source is None:
      self._episode.claim_tokens(self, prompts[0])

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns the recorded tokens, and the new messages rendered."""
    source = self._episode.claim_messages(self, messages, tools)
    context = self.limits.context
    if not source.num_known:
      return render(codec, messages, tools, context)
    new = messages[source.num_known :]
    return extend(source.prefix, new, codec, context)

  def record(
    self,
    choice: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
  ) -> None:
    """Records an answer with the tokens before it."""
    self._episode.add(self, choice, messages, tools)

  def _refuse_other_draws(self, request: CompletionRequest) -> None:
    """Refuses sampling that the learner does not compute with."""
    for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
      if found := getattr(request, name):
        shown = dict(found) if name == "logit_bias" else found
        raise ApiError(
          f"{name}={shown}: a call of an episode is sampled from the policy's "
          "own distribution, which is what the learner computes, without "
          "penalties and biases. Leave it out, or make the call without the "
          "episode's header: it is then answered and not trained on",
          param=name,
          code="unsupported_value",
        )
    asked = (request.temperature, request.top_p, request.top_k, request.min_p)
    run = self._episode.rules.temperature
    if asked[1:] != (1.0, 0, 0.0) or asked[0] not in (None, run):
      raise ApiError(
        f"(temperature, top_p, top_k, min_p)={asked}: a call of an episode is "
        f"sampled at the run's sampling.temperature={run:g}, from all tokens. "
        "Leave them out, or set sampling.temperature as your agent needs it",
        param="temperature",
        code="unsupported_value",
      )


class Repeated(CallContext):
  """A call of an episode made again, and a generator of its answer."""

  num_policy_slots = 1

  def __init__(self, call: EpisodeCall, line: EpisodeLine):
    super().__init__(call.limits)
    self._call = call
    # The line may get another answer while this one is sent again.
    self._prompt, self._answer = line.last_prompt, line.answer

  def answer_budget(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns the budget of the first call."""
    return self._call.answer_budget(prompt, request, name)

  def fill_in(self, request: CompletionRequest) -> CompletionRequest:
    """Returns the request as the first call was sampled."""
    return self._call.fill_in(request)

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns the prompt of the first call."""
    return self._prompt

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Returns the answer that was recorded."""
    assert self._answer is not None
    return self._answer


def conflict(message: str, code: str, param: str | None = None) -> ApiError:
  """Returns the error of a call that does not fit the episode's state."""
  return ApiError(message, code=code, param=param, status=409)
