"""A small random policy with a tokenizer, and a server with OpenAI's API.

What needs jax is imported where it is used: a server whose answers are scripted
starts in a second.
"""

import contextlib
import functools

import numpy as np
import openai
import tokenizers

from agentrl_jax.controller.cross_policy import NEVER
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.records import EpisodeLimits
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.openai.episodes.episode import EpisodeRules
from agentrl_jax.rollout.openai.episodes.offers import Episodes
from agentrl_jax.rollout.openai.models import ModelNames
from agentrl_jax.rollout.openai.routes import OpenAIApi, OpenAIModel
from agentrl_jax.rollout.openai.schema import ServingLimits
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.app import RolloutApi, listening

VOCAB = 280
CONTEXT = 384
STEPS = (10, 20)  # versions that the policy slots serve
NAME = "tiny"


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
  texts = ["What is 1 + 2?", "Adds two integers.", "the answer is three"]
  return train_tokenizer(texts * 9, vocab_size=VOCAB)


@functools.cache
def codec() -> ChatCodec:
  return ChatCodec(tokenizer())


@functools.cache
def grammars() -> Grammars:
  return codec().grammars(codec().vocab_size)


@functools.cache
def policy():
  from agentrl_jax.model.config import ModelConfig
  from agentrl_jax.model.policy import Policy
  from tests.settings import COMPUTE

  return Policy(
    ModelConfig(
      vocab_size=codec().vocab_size,
      width=16,
      num_layers=1,
      num_heads=2,
      num_kv_heads=2,
      head_dim=8,
      mlp_width=16,
    ),
    COMPUTE,
  )


@functools.cache
def params(step: int):
  import jax

  return policy().init(jax.random.key(step))


def engine_of(**changes):
  from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
  from tests.settings import engine_config

  settings = dict(
    slots=(4,) * len(STEPS),
    context=CONTEXT,
    num_slot_sizes=1,
    prefill_chunks=(16,),
    prefill_slots=4,
    steps_per_sync=3,
  )
  store = ServedWeights(len(STEPS))
  for policy_slot, step in enumerate(STEPS):
    store.publish(params(step), step, policy_slot=policy_slot)
  return RolloutEngine(
    policy(), engine_config(**(settings | changes)), store, grammars=grammars
  )


@functools.cache
def _teacher():
  import jax

  return jax.jit(policy().logits)


def logits(step: int, tokens) -> np.ndarray:
  """Returns the learner's logits [T - 1, V] after each token but the last."""
  size = len(tokens)
  row = np.zeros((1, CONTEXT), np.int32)
  row[0, :size] = tokens
  position = np.arange(CONTEXT, dtype=np.int32)[None]
  segment = (position < size).astype(np.int32)
  return np.asarray(_teacher()(params(step), row, position, segment))[
    0, : size - 1
  ]


def raw_logprobs(step: int, tokens) -> np.ndarray:
  """Returns the learner's log-probabilities of the tokens but the first."""
  return logprobs_of(logits(step, tokens), tokens[1:])


def logprobs_of(logits_TV, tokens) -> np.ndarray:
  import jax

  logprob_TV = np.asarray(jax.nn.log_softmax(logits_TV))
  return np.take_along_axis(logprob_TV, np.asarray(tokens)[:, None], 1)[:, 0]


class Scripted:
  """A generator with scripted answers."""

  num_policy_slots = len(STEPS)

  def __init__(self, codec=codec):
    self._codec = codec
    self.says: list[str] = []  # a text may end with its stop token
    self.prompts: list[list[int]] = []
    self.specs: list[SamplingParams] = []

  async def generate(self, prompt, spec) -> Completion:
    self.prompts.append(list(map(int, prompt)))
    self.specs.append(spec)
    ids = self._codec().encode(self.says.pop(0))[: spec.max_tokens]
    logprob = -np.arange(1, len(ids) + 1, dtype=np.float32)
    step = np.full(len(ids), STEPS[spec.policy_slot], np.int32)
    return Completion(ids, logprob, logprob, step, policy_slot=spec.policy_slot)


class Talking:
  """A server with OpenAI's API on a real engine, and clients of it."""

  def __init__(
    self,
    *,
    codec=codec,
    limits=None,
    generator=None,
    rules=None,
    token=None,
    records=True,
    draw=NEVER,
    http=None,
    **changes,
  ):
    self._codec, self._changes, self._scripted = codec, changes, generator
    self._limits = ServingLimits(**({"context": CONTEXT} | (limits or {})))
    self._token, self._records = token, records
    self._http = HttpLimits(**(http or {}))
    numbers = {"max_turns": 6, "max_tokens": CONTEXT, "max_answer_tokens": 12}
    given = {"temperature": 1.0, "idle_timeout_s": 600.0, **(rules or {})}
    episode = EpisodeLimits(**{n: given.pop(n, x) for n, x in numbers.items()})
    self.episodes = Episodes(
      EpisodeRules(limits=episode, **given), self._limits, draw
    )
    self._stack = contextlib.AsyncExitStack()

  def status(self) -> wire.ServerStatus:
    if self.driver is None:
      served = (wire.ServedPolicySlot(step, publication=step) for step in STEPS)
      return wire.ServerStatus(
        policy_slots=tuple(served), num_inside=0, num_waiting=0
      )
    from tests.rollout.serving import status_of

    return status_of(self.driver)

  def client(self, **options):
    settings = dict(
      base_url=f"{self.url}/v1",
      api_key=self._token or "none",
      max_retries=0,
      # Without it each client reads all certificates that this machine trusts.
      http_client=openai.DefaultAsyncHttpxClient(verify=False),
    )
    return openai.AsyncOpenAI(**(settings | options))

  async def __aenter__(self):
    enter = self._stack.enter_async_context
    self.driver, self.generator = None, self._scripted
    if self.generator is None:
      await self._start_engine()
    self.api = RolloutApi(
      self.generator,
      self.status,
      context=CONTEXT,
      openai=self._openai,
      http=self._http,
      token=self._token,
      slots=self.driver and (lambda: self.driver.engine.stats().num_active),
    )
    port = await enter(listening(self.api, "127.0.0.1", 0))
    self.url = f"http://127.0.0.1:{port}"
    self.openai = await enter(self.client())
    return self

  async def _start_engine(self):
    from agentrl_jax.rollout.drivers.driver import EngineGenerator, LocalDriver

    options = self._changes.pop("driver_options", {})
    self.driver = LocalDriver(engine_of(**self._changes), **options)
    self._stack.callback(self.driver.close)
    await self._stack.enter_async_context(self.driver.serving())
    self.generator = EngineGenerator(self.driver, deadline_s=600.0)

  def _openai(self, answering):
    names = ModelNames(NAME, lambda: self.status().policy_slots)
    return OpenAIApi(
      self.generator,
      answering,
      [OpenAIModel(names, self._limits, self._codec)],
      self.episodes if self._records else None,
    )

  async def __aexit__(self, *error):
    await self._stack.aclose()
