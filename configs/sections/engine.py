"""Sizes of the engine that decodes answers: docs/engine.md."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `engine`."""
  return create(
    engine=create(
      lengths=(),  # shorter cache lengths to compile for, in tokens
      num_slot_sizes=3,  # number of batch sizes to compile for
      prefill_chunks=(16, 64),  # tokens per slot and call of a prefill
      prefill_slots=16,  # slots per call of a prefill
      # Tokens that are prefilled per step, so that decoding does not stall.
      prefill_tokens=1024,
      steps_per_sync=4,  # tokens per slot between two syncs with the host
      # Tokens of a page of the KV cache, on a TPU a multiple of 128; 0: a size
      # that fits `context`. See "Pages" in docs/engine.md.
      page_size=0,
      cache_tokens=(),  # of all pages, per policy slot; (): context x slots
      # Weights to decode with: full, as the learner has them; or int8 or fp8,
      # half of bfloat16's bytes. See "Weights in eight bits" in docs/engine.md.
      weights="full",
      # Tokens that a slot guesses from what it, or its group, has had before,
      # and computes together with its next token; 0: none. Changes no answer.
      draft_tokens=0,
      # Time to compute one more token per slot, in units of a decode step: 0.4
      # on two cores, less where decoding waits for memory.
      draft_cost=0.4,
      # Of a mixture: the experts of each token go with its answer, and the
      # learner routes by them. See "Router replay" in docs/losses.md.
      router_replay=False,
    )
  )
