"""Peer of `bench.learner.rl_step`: Tunix's GRPOLearner with its own sampler.

Reads a model and prompt.npy from a folder and prints its versions. Then takes
one step of the learner for every line and answers with the seconds taken. Its
loss computes the entropy over the whole vocabulary, which cannot be turned off.
"""

import functools
import json
import os
import pathlib
import sys
import time

import grain.python as grain
import jax
import numpy as np
import optax
import tunix
from jax.sharding import Mesh
from tunix.generate import tokenizer_adapter
from tunix.models.llama3 import model as llama3
from tunix.models.llama3 import params as llama3_params
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params as qwen3_params
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout
from words import make_tokenizer, rewards, text_of

ATTEMPTS, PROMPT, ANSWER = 8, 128, 128
NO_TOKEN = 10**6  # ends no answer
ROLE = rl_cluster.Role
FAMILIES = {  # by model_type, with the name of tied embeddings
  "llama": (llama3.ModelConfig, llama3_params, "weight_tying"),
  "qwen3": (qwen3.ModelConfig, qwen3_params, "use_tied_embedding"),
}


def make_model(folder: pathlib.Path, mesh: Mesh):
  """The model that lies in the folder, and its number of words."""
  described = json.loads((folder / "config.json").read_text())
  rope = described.get("rope_parameters", described)
  make_config, params, tied = FAMILIES[described["model_type"]]
  if make_config is llama3.ModelConfig:
    # Its attention does not read the config's rope_theta.
    llama3.apply_rope = functools.partial(
      llama3.apply_rope, rope_theta=int(rope["rope_theta"])
    )
  width, num_heads = described["hidden_size"], described["num_attention_heads"]
  config = make_config(
    num_layers=described["num_hidden_layers"],
    vocab_size=described["vocab_size"],
    embed_dim=width,
    hidden_dim=described["intermediate_size"],
    num_heads=num_heads,
    head_dim=described.get("head_dim", width // num_heads),
    num_kv_heads=described["num_key_value_heads"],
    norm_eps=described["rms_norm_eps"],
    rope_theta=int(rope["rope_theta"]),
    **{tied: described["tie_word_embeddings"]},
  )
  model = params.create_model_from_safe_tensors(
    str(folder), config, mesh, dtype=jax.numpy.float32
  )
  return model, config.vocab_size


def make_cluster(model, vocab_size: int, mesh: Mesh):
  """Trainer and sampler on the same device."""
  training = rl_cluster.RLTrainingConfig(
    actor_optimizer=optax.chain(
      optax.clip_by_global_norm(1.0), optax.adamw(1e-5, weight_decay=0.01)
    ),
    eval_every_n_steps=10**6,
    max_steps=10**6,
    mini_batch_size=1,
    train_micro_batch_size=1,
  )
  rollout = base_rollout.RolloutConfig(
    max_prompt_length=PROMPT,
    max_tokens_to_generate=ANSWER,
    kv_cache_size=PROMPT + ANSWER + 8,
    temperature=1.0,
    top_p=1.0,
    eos_tokens=[NO_TOKEN],
  )
  return rl_cluster.RLCluster(
    actor=model,
    tokenizer=tokenizer_adapter.TokenizerAdapter(make_tokenizer(vocab_size)),
    cluster_config=rl_cluster.ClusterConfig(
      role_to_mesh=dict.fromkeys(
        (ROLE.ACTOR, ROLE.REFERENCE, ROLE.ROLLOUT), mesh
      ),
      rollout_engine="vanilla",
      training_config=training,
      rollout_config=rollout,
    ),
  )


def take_turns(cluster, answers) -> None:
  """A step begins when a line comes, and ends with its update."""
  began = []
  generate, update = cluster.generate, cluster.update_actor

  def generate_when_asked(*arguments, **options):
    if not sys.stdin.readline():
      os._exit(0)  # nothing is wanted any more; nothing is worth saving
    began[:] = time.perf_counter(), time.process_time()
    return generate(*arguments, **options)

  def update_and_tell(*arguments, **options):
    update(*arguments, **options)
    jax.block_until_ready(jax.live_arrays())
    wall, cpu = began
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(wall, cpu, file=answers, flush=True)

  cluster.generate, cluster.update_actor = generate_when_asked, update_and_tell


def main() -> None:
  """Trains until nobody asks any more."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # whatever else is printed
  folder = pathlib.Path(sys.argv[1])
  mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
  model, vocab_size = make_model(folder / "model", mesh)
  cluster = make_cluster(model, vocab_size, mesh)
  take_turns(cluster, answers)

  def reward(prompts, completions, **others):
    if any(len(text.split()) != ANSWER for text in completions):
      raise RuntimeError(f"an answer is not of {ANSWER} tokens")
    return rewards(completions)

  learner = grpo_learner.GRPOLearner(
    rl_cluster=cluster,
    reward_fns=[reward],
    algo_config=grpo_learner.GRPOConfig(
      num_generations=ATTEMPTS, num_iterations=1, beta=0.0, epsilon=0.2
    ),
  )
  text = text_of(np.load(folder / "prompt.npy"))
  steps = grain.MapDataset.source([text] * 1000).batch(1)
  version = getattr(tunix, "__version__", "0.1.7")
  print("tunix", version, "jax", jax.__version__, file=answers, flush=True)
  learner.train(steps.map(lambda texts: {"prompts": np.array(texts)}))


if __name__ == "__main__":
  main()
