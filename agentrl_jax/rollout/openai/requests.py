"""What a call asks for, as both endpoints read it."""

import dataclasses
import re
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.errors import PromptTooLong
from agentrl_jax.rollout.api import MAX_BIASES, MAX_STOPS, SamplingSpec
from agentrl_jax.rollout.openai.fields import MAX_VALUES, Fields, wrong
from agentrl_jax.rollout.server.errors import ApiError

MAX_STOP_TEXTS = 4  # OpenAI's own limit
_MAX_STOP_CHARS = 256
_MAX_TEMPERATURE = 100.0
# Between the seeds of the answers to one call: 2^64 over the golden ratio.
_STRIDE = 0x9E3779B97F4A7C15
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
RAW, PROCESSED = "raw_logprobs", "processed_logprobs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingLimits:
  """What one call may ask of a server, and how many may come at once."""

  context: int  # tokens of prompt and answer together
  max_choices: int = 64  # answers to one call
  max_calls: int = 1024  # at once
  write_s: float = 120.0  # for a client to take the next piece of a stream

  @property
  def max_values(self) -> int:
    """Separators of JSON in one call, a prompt's token ids included."""
    return MAX_VALUES + 8 * self.context


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionRequest:
  """The fields that both endpoints have in common."""

  model: str
  n: int
  temperature: float | None  # None: the call gave none
  top_p: float
  top_k: int
  min_p: float
  seed: int  # one is drawn for a call that gives none
  has_seed: bool
  max_tokens: int | None  # None: as many as there is room for
  stops: tuple[str, ...]
  stop_tokens: tuple[int, ...]
  ends_at_stops: bool  # of the chat template, too
  stream: bool
  include_usage: bool
  return_token_ids: bool
  raw_logprobs: bool  # or those of the distribution drawn from
  num_top: int  # the likeliest tokens to tell of at each place
  frequency_penalty: float
  presence_penalty: float
  logit_bias: tuple[tuple[int, float], ...]

  def spec(
    self,
    *,
    policy_slot: int,
    max_tokens: int,
    template_stops: Sequence[int],
    number: int,
    grammar: str = "",
  ) -> SamplingSpec:
    """How the call's answer `number` is sampled.

    Refuses more stop tokens than the engine has.
    """
    stops = dict.fromkeys(self.stop_tokens)
    if self.ends_at_stops:
      stops |= dict.fromkeys(template_stops)
    if len(stops) > MAX_STOPS:
      raise ApiError(
        f"stop_token_ids={self.stop_tokens} and the chat template's own "
        f"{tuple(template_stops)} are more than the {MAX_STOPS} that can end an"
        " answer: give fewer, or ignore_eos=true",
        param="stop_token_ids",
      )
    return SamplingSpec(
      policy_slot=policy_slot,
      temperature=1.0 if self.temperature is None else self.temperature,
      top_k=self.top_k,
      top_p=self.top_p,
      min_p=self.min_p,
      max_tokens=max_tokens,
      stop_tokens=tuple(stops),
      seed=(self.seed + number * _STRIDE) % 2**64,
      grammar=grammar,
      frequency_penalty=self.frequency_penalty,
      presence_penalty=self.presence_penalty,
      logit_bias=self.logit_bias,
      num_top=self.num_top,
      top_is_raw=self.raw_logprobs,
    )


def read_completion_request(
  fields: Fields,
  limits: ServingLimits,
  *,
  max_tokens: int | None,
  num_top: int,
) -> CompletionRequest:
  """Reads what is common; `max_tokens` is for a call that gives none.

  `num_top` is named differently by each endpoint, which has read it.
  """
  stream = fields.flag("stream")
  seed = fields.integer("seed", None, low=-(2**63), high=2**64 - 1)
  return CompletionRequest(
    model=_text("model", fields.required("model")),
    n=fields.integer("n", 1, low=1, high=limits.max_choices) or 1,
    temperature=fields.number(
      "temperature", None, low=0.0, high=_MAX_TEMPERATURE
    ),
    top_p=fields.number("top_p", 1.0, low=1e-6, high=1.0),
    top_k=_top_k(fields),
    min_p=fields.number("min_p", 0.0, low=0.0, high=1.0),
    seed=secrets.randbits(63) if seed is None else seed,
    has_seed=seed is not None,
    max_tokens=fields.integer("max_tokens", max_tokens, low=1),
    stops=_stop_texts(fields.take("stop", [])),
    stop_tokens=_stop_tokens(fields.take("stop_token_ids", [])),
    ends_at_stops=not fields.flag("ignore_eos"),
    stream=stream,
    include_usage=_include_usage(fields.take("stream_options"), stream),
    return_token_ids=fields.flag("return_token_ids"),
    raw_logprobs=_is_raw(fields.take("logprobs_mode", RAW)),
    num_top=num_top,
    frequency_penalty=_penalty(fields, "frequency_penalty"),
    presence_penalty=_penalty(fields, "presence_penalty"),
    logit_bias=_logit_bias(fields.take("logit_bias", {})),
  )


def refuse_long(
  limits: ServingLimits, codec: ChatCodec, num_bytes: int, *, times: int = 1
) -> None:
  """Raises `PromptTooLong` for text that cannot fit, before it is tokenised.

  A token stands for as many bytes as the vocabulary's longest entry at most.
  `times` as much is let through where a template may leave text out.
  """
  most = times * limits.context * codec.longest_token
  if num_bytes > most:
    raise PromptTooLong(
      f"the prompt has {num_bytes} bytes, and {limits.context} tokens, which "
      f"is what fits, are {most} bytes at the most: shorten the prompt"
    )


def room(
  limits: ServingLimits, prompt: np.ndarray, asked: int | None, *, name: str
) -> int:
  """Tokens that an answer may have. Raises `PromptTooLong` for less than one.

  What was asked for and does not fit is refused, as OpenAI's own servers do.
  """
  left = limits.context - len(prompt)
  if left < (asked or 1):
    raise PromptTooLong(
      f"the prompt has {len(prompt)} tokens and {name}={asked or 1} are asked "
      f"for on top; {limits.context} is what fits together. Shorten the "
      f"prompt, or ask for up to {max(left, 0)}"
    )
  return asked or left


def _text(name: str, found: Any) -> str:
  if not isinstance(found, str):
    raise wrong(name, found, "text")
  return found


def _top_k(fields: Fields) -> int:
  found = fields.integer("top_k", 0, low=-1, high=2**31 - 1) or 0
  return max(found, 0)  # -1 is how vLLM says all


def _stop_texts(found: Any) -> tuple[str, ...]:
  texts = [found] if isinstance(found, str) else found
  allowed = f"up to {MAX_STOP_TEXTS} texts of 1 to {_MAX_STOP_CHARS} characters"
  if not isinstance(texts, list) or len(texts) > MAX_STOP_TEXTS:
    raise wrong("stop", found, allowed)
  for text in texts:
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_STOP_CHARS:
      raise wrong("stop", found, allowed)
  return tuple(texts)


def _stop_tokens(found: Any) -> tuple[int, ...]:
  is_row = isinstance(found, list) and len(found) <= MAX_STOPS
  if not is_row or not all(type(id) is int and 0 <= id < 2**31 for id in found):
    raise wrong("stop_token_ids", found, f"up to {MAX_STOPS} token ids")
  return tuple(found)


def _include_usage(options: Any, stream: bool) -> bool:
  if options is None:
    return False
  if not stream:
    raise ApiError(
      "stream_options is for calls with stream=true", param="stream_options"
    )
  known = {"include_usage", "include_obfuscation"}
  if not isinstance(options, dict) or not set(options) <= known:
    raise wrong("stream_options", options, '{"include_usage": true or false}')
  return options.get("include_usage") is True


def _is_raw(found: Any) -> bool:
  if found not in (RAW, PROCESSED):
    raise wrong("logprobs_mode", found, f"{RAW!r} or {PROCESSED!r}")
  return bool(found == RAW)


def _penalty(fields: Fields, name: str) -> float:
  return fields.number(name, 0.0, low=-2.0, high=2.0)


def _logit_bias(found: Any) -> tuple[tuple[int, float], ...]:
  """Token ids, written as text, with what is added to their logits."""
  allowed = (
    f"an object of up to {MAX_BIASES} token ids, such as "
    '{"1734": -100}, with numbers from -100 to 100'
  )
  if not isinstance(found, dict) or len(found) > MAX_BIASES:
    raise wrong("logit_bias", found, allowed)
  for token, bias in found.items():
    is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
    is_id = _TOKEN_ID.fullmatch(token) and int(token) < 2**31
    if not is_id or not is_number or not -100 <= bias <= 100:
      raise wrong("logit_bias", {token: bias}, allowed)
  return tuple((int(t), float(bias)) for t, bias in found.items() if bias)
