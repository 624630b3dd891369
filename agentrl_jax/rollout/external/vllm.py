"""The dialect of vLLM: OpenAI's completions, extended by token ids.

`POST /v1/completions` with `prompt` as ids and `return_token_ids` gives the ids
of prompt and answer (vLLM 0.10.2 and newer); rollout servers of this framework
add the version and both log-probabilities of every token.
docs/engine.md lists the sources of these assumptions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.external.response import (
  EngineDialect,
  EngineOutput,
  Remedies,
)

_REMEDIES = Remedies(
  token_ids="vLLM has `return_token_ids` from 0.10.2 on: serve with that",
  prompt_ids="vLLM has `return_token_ids` from 0.10.2 on; nothing that cuts "
  "or adds to a prompt may be set",
  logprobs="start vLLM with --logprobs-mode raw_logprobs or processed_logprobs "
  "and --max-logprobs of at least 1",
  stop_token="stop tokens have to be `stop_token_ids`, the last of the answer, "
  "with `ignore_eos` respected; do not serve with other stop strings",
  seeds="vLLM for TPUs takes no seed of a request; set "
  "--config.rollouts.need_seeds=False to train on samples that cannot be "
  "repeated",
  version="start vLLM with VLLM_SERVER_DEV_MODE=1, so that it has "
  "/weight_info, and run launch.sync_weights beside it",
)


def _request(
  model: str,
  prompt: Sequence[int],
  sampling: SamplingParams,
  sends_seed: bool,
  gives_prompt: bool,
) -> dict[str, Any]:
  """Overrides every default of the engine."""
  del gives_prompt  # vLLM always returns the prompt
  body: dict[str, Any] = {
    "model": model,
    "prompt": list(prompt),
    "max_tokens": sampling.max_tokens,
    "temperature": sampling.temperature,
    "top_p": sampling.top_p,
    "top_k": sampling.top_k,
    "min_p": sampling.min_p,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
    "stream": False,
    "logprobs": 0,  # of the sampled token only
    "return_token_ids": True,
    "stop_token_ids": list(sampling.stop_tokens),
    "ignore_eos": True,  # a run's own stop tokens decide
  }
  if sends_seed:
    body["seed"] = sampling.seed % 2**63  # vLLM reads 64 bits with a sign
  return body


def _read(content: Mapping[str, Any]) -> EngineOutput:
  choice = content["choices"][0]
  logprobs = choice.get("logprobs") or {}
  usage = content.get("usage") or {}
  details = usage.get("prompt_tokens_details") or {}
  prompt = choice.get("prompt_token_ids")
  if prompt is None:
    prompt = content.get("prompt_token_ids")
  behavior = choice.get("behavior_logprobs")
  return EngineOutput(
    sampled=choice.get("token_ids"),
    logprob=behavior or logprobs.get("token_logprobs"),
    prompt=prompt,
    raw_logprob=choice.get("raw_logprobs") if behavior else None,
    version=choice.get("token_versions"),
    is_whole=choice["finish_reason"] in ("stop", "length"),
    num_reused=details.get("cached_tokens") or 0,
  )


OPENAI = EngineDialect(
  name="openai",
  path="/v1/completions",
  version_paths=("/weight_info",),  # where VLLM_SERVER_DEV_MODE=1
  remedies=_REMEDIES,
  request=_request,
  read=_read,
)
