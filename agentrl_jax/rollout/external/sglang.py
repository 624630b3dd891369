"""The dialect of SGLang's own endpoint, which reads and writes token ids.

`POST /generate` with `input_ids` gives each token's log-probability and id in
`meta_info.output_token_logprobs`, and the version of the weights in
`meta_info.weight_version`, or one per span of tokens in `weight_versions`.
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
  token_ids="SGLang gives `output_ids`; ask /generate itself, and no gateway",
  prompt_ids="SGLang gives `input_token_logprobs` with the ids; nothing that "
  "cuts or adds to a prompt may be set",
  logprobs="`return_logprob` has to be respected; ask /generate itself, and no "
  "gateway",
  stop_token="SGLang also ends at the eos tokens of the model's "
  "generation_config.json: those of the tokenizer in this run must be the same",
  seeds="start SGLang with --enable-deterministic-inference, or set "
  "--config.rollouts.need_seeds=False to train on samples that cannot be "
  "repeated",
  version="serve with an SGLang that has `weight_version` (0.5.2 and newer; "
  "SGLang-JAX has none), and run launch.sync_weights beside it",
)


def _request(
  model: str,
  prompt: Sequence[int],
  sampling: SamplingParams,
  sends_seed: bool,
  gives_prompt: bool,
) -> dict[str, Any]:
  """Overrides every default of the engine.

  `gives_prompt` also requests the log-probabilities of the prompt, which come
  with its ids and cost a prefill without reuse.
  """
  del model  # the engine serves one
  params: dict[str, Any] = {
    "max_new_tokens": sampling.max_tokens,
    "temperature": sampling.temperature,
    "top_p": sampling.top_p,
    "top_k": sampling.top_k or -1,
    "min_p": sampling.min_p,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
    "stop_token_ids": list(sampling.stop_tokens),
    "no_stop_trim": True,
    "skip_special_tokens": False,
  }
  if sends_seed:
    params["sampling_seed"] = sampling.seed % 2**31
  return {
    "input_ids": list(prompt),
    "sampling_params": params,
    "return_logprob": True,
    "logprob_start_len": 0 if gives_prompt else -1,
    "stream": False,
  }


def _read(content: Mapping[str, Any]) -> EngineOutput:
  meta = content["meta_info"]
  tokens = meta.get("output_token_logprobs")
  prompt = meta.get("input_token_logprobs")
  spans = meta.get("weight_versions")
  ending = meta["finish_reason"]
  return EngineOutput(
    sampled=content.get("output_ids"),
    logprob=None if tokens is None else _logprobs(content, tokens),
    prompt=[entry[1] for entry in prompt] if prompt else None,
    num_prompt=meta.get("prompt_tokens"),
    spans=spans
    and [(str(s["version"]), int(s["start"]), int(s["end"])) for s in spans],
    label=meta.get("weight_version"),
    is_whole=ending is not None and ending["type"] in ("stop", "length"),
    num_reused=meta.get("cached_tokens") or 0,
  )


def _logprobs(
  content: Mapping[str, Any], tokens: Sequence[Sequence[Any]]
) -> list[float | None] | None:
  """Returns None unless they belong to the output tokens."""
  if [entry[1] for entry in tokens] != content.get("output_ids"):
    return None
  return [entry[0] for entry in tokens]


SGLANG = EngineDialect(
  name="sglang",
  path="/generate",
  version_paths=("/get_weight_version", "/model_info", "/get_model_info"),
  remedies=_REMEDIES,
  request=_request,
  read=_read,
)
