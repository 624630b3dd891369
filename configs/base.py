"""The config: the keys that people set; `sections/` beside it has all others.

A key that is in neither does not exist: the config is locked, so a misspelt
override fails at launch. `python -m launch.config --explain loss.clip_high`
prints the default of a key, its choices and where it is read. Numbers are
finite; their ranges are in `launch/config/numbers.py`. Defaults are AgentRL's
(arXiv:2510.04206) where it has one; the model is a small one.
"""

import functools
import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import ml_collections
from ml_collections.config_dict import create

from agentrl_jax.errors import suggestion
from configs import environments
from configs.sections import (
  collapse,
  controller,
  engine,
  episodes,
  model,
  objective,
  run,
  servers,
  tasks,
  training,
)

FLAG = "--config."  # before a key on a command line
_Settings = TypeVar("_Settings")
_ROOMS = (
  run,
  tasks,
  model,
  training,
  objective,
  collapse,
  episodes,
  controller,
  engine,
  servers,
)


def shipped_file(name: str | pathlib.Path) -> pathlib.Path:
  """Returns the path of a name; `configs/...` is found from any folder."""
  here = pathlib.Path(name)
  there = pathlib.Path(__file__).parents[1] / here
  is_shipped = here.parts[:1] == ("configs",) and there.exists()
  return there if is_shipped and not here.exists() else here


def get_config() -> ml_collections.ConfigDict:
  """AgentRL on two of its environments, played in this process."""
  c = create(
    name="run",  # folder of the run, below workdir
    workdir="runs",  # folder of all runs
    seed=0,  # of all that is random
    tasks=create(names=("dbbench", "webshop")),  # keys of `environments`
    mesh=create(  # number of devices along each axis
      data=1,  # copies of the policy
      fsdp=1,  # shards of its params
      tensor=1,  # shards of its heads and channels
      sequence=1,  # shards of a row's tokens
      expert=1,  # shards of a model's experts, which rows are split over too
    ),
    # Hugging Face folder to start from: config.json, *.safetensors and the
    # tokenizer. It replaces `tokenizer` and the architecture in `model`.
    pretrained=create(path=""),
    # A published model, see agentrl_jax/model/hugging_face/presets.py: it
    # replaces the other keys of `model` but value_head. "": these keys.
    model=create(name=""),
    # Rank of adapters, trained in place of the params; 0 trains the params.
    lora=create(rank=0),
    compute=create(
      dtype="float32",  # dtype of activations and products; or bfloat16
      scan_layers=False,  # compile one layer for all, for deep models
      # Values recomputed in the backward pass: none, dots, attention or full.
      remat="none",
    ),
    tokenizer=create(vocab_size=1024),  # tokens, bytes and markers included
    warm_start=create(  # supervised training on demonstrations
      # Chats to learn from, a file or a folder of them, see docs/your_data.md;
      # "": experts play.
      chats="",
      num_demonstrations=20_000,  # that experts play, or that are read at most
      epochs=1,  # passes over the demonstrations; 0 needs pretrained.path
    ),
    train=create(
      steps=1000,  # optimizer updates of reinforcement learning
      row_length=8192,  # tokens of a packed row
      micro_batch=2,  # rows per forward pass
    ),
    optimizer=create(
      learning_rate=1e-6,  # highest value of the learning rate
      warmup_steps=10,  # updates until learning_rate is reached
    ),
    loss=create(
      # Term of the advantage: clipped, reinforce, cispo, dppo_tv, dppo_kl,
      # gspo, gspo_token, sapo, gmpo; or module:function, your own. See
      # docs/losses.md.
      surrogate="clipped",
      # Largest relative fall of a token's probability, below 1. For cispo 1 is
      # no bound; for gmpo and dppo_kl the bound is in nats.
      clip_low=0.2,
      # Largest relative rise of a token's probability; for gmpo and dppo_kl in
      # nats.
      clip_high=0.2,
      # Weight of the KL term to the reference, which is the warm start; 0 keeps
      # no reference.
      kl_coefficient=1e-4,
    ),
    advantage=create(
      # One of ESTIMATORS in agentrl_jax/train/config/advantage.py, or
      # module:function, your own.
      estimator="grpo",
      # Filter of groups before the loss takes its mean: all, signal, std,
      # top_share, top_signal, top_softmax, module:function.
      keep="all",
      incomplete_reward=-0.2,  # reward of an episode that did not complete
    ),
    episode=create(
      max_turns=20,  # answers of the policy
      max_tokens=8192,  # prompt, observations and answers together
      max_answer_tokens=1024,  # tokens of one answer
    ),
    sampling=create(
      temperature=0.8,  # of answers in training
      # Grammar of tool calls, in training and evaluation: free, well_formed (a
      # tool's name, arguments that fit its schema), or required (the same, and
      # at least one call per answer). A task without tools has no grammar.
      calls="free",
    ),
    group=create(size=8),  # attempts at a task
    admission=create(
      groups_per_step=256,  # groups of a batch
      max_staleness=1,  # versions between sampling and training
      max_concurrent_groups=256,  # groups in play at once
    ),
    queue=create(max_groups=256),  # capacity; a full queue holds back groups
    cross_policy=create(
      draw_per="turn",  # unit that draws a policy slot; or trajectory, never
      # Version of each policy slot: "fresh"; "every 25", the newest such
      # update; "every 25 lag 50", at least 50 updates old; "steps 0,100", the
      # newest of them; "steps 300 of FOLDER", of another run's checkpoints.
      policy_slots=("fresh", "every 25"),
      weights=(0.75, 0.25),  # probability of each policy slot
    ),
    engine=create(
      # Threads of the engine: jetstream; or local, one thread. The latter, with
      # queue.order="started" and admission.max_staleness=0, lets a run repeat
      # bit for bit.
      driver="jetstream",
      slots=(192, 64),  # sequences decoded at once, per policy slot
      context=8192,  # tokens of prompt and answer together
    ),
    # Addresses of rollout servers, as host:port,host:port; "": the engine is in
    # this process. See docs/engine.md.
    rollouts=create(servers=""),
    # Port of an OpenAI API in this process, by which agents of other libraries
    # play: docs/serving.md. 0: any free one; -1: our own player plays.
    agents=create(port=-1),
    checkpoint=create(
      every=25,  # updates between checkpoints
      keep=3,  # number of the newest that are kept
    ),
    evaluation=create(
      num_tasks=256,  # held-out tasks per environment
      concurrency=256,  # episodes at once; likewise of the warm start's experts
      # Updates of RL between evaluations of its newest version on tasks that
      # are not trained on; 0: none. See docs/reading_a_run.md.
      every=0,
    ),
    # Copies of the metrics at "wandb", whose own variables say where:
    # docs/reading_a_run.md.
    report=create(trackers=()),
  )
  c.environments = environments.get_config()
  for room in _ROOMS:
    _add(c, room.get_config())
  return c.lock()


def _add(
  section: ml_collections.ConfigDict, rest: ml_collections.ConfigDict
) -> None:
  """Adds the keys of `rest`, which the section must not have."""
  for name, value in rest.items():
    if name not in section:
      section[name] = value
    elif isinstance(value, ml_collections.ConfigDict):
      _add(section[name], value)
    else:
      raise ValueError(f"the default of {name} stands twice in configs/")


@functools.cache
def default_values() -> Mapping[str, Any]:
  """Returns the default of every key, by section; made once, so not changed."""
  return get_config().to_dict()


def defaults(
  settings: Callable[..., _Settings], section: str, **changes: Any
) -> _Settings:
  """Makes the class of a section from its defaults and the changes.

    loss = defaults(LossConfig, "loss", clip_high=0.28)

  Such a class has no defaults of its own. Keys that it does not take, such as
  `engine.driver`, are left out.
  """
  fields = inspect.signature(settings).parameters
  keys = default_values()[section].items()
  return settings(**{k: v for k, v in keys if k in fields} | changes)


def why_unknown(named: str, config: ml_collections.ConfigDict) -> str:
  """Returns why a key is refused, or "" if it exists.

  `named` is the key as it was written, with or without `--config.` before it.
  """
  key = named.removeprefix(FLAG)
  held: Any = config
  done: list[str] = []
  for word in key.split("."):
    if not isinstance(held, ml_collections.ConfigDict):
      # Part of a tuple, perhaps: parsing says what cannot be.
      return ""
    if word not in held:
      if isinstance(held, environments.Open):
        return ""
      place = ".".join(done)
      inside = f"config.{place} has" if place else "the config has"
      return (
        f"{named} is no key of the config{near_keys(key, word, config)}; "
        f"{inside} {', '.join(sorted(held))}"
      )
    done.append(word)
    held = held[word]
  return ""


def near_keys(key: str, word: str, config: ml_collections.ConfigDict) -> str:
  """Returns the keys most similar to one that does not exist, `key`.

  `word` is the part of it that nothing has.
  """
  keys = [k for k, _ in flat_keys(config)]
  elsewhere = [k for k in keys if k.rpartition(".")[2] == word]
  if elsewhere:
    return f" (did you mean {' or '.join(elsewhere)}?)"
  return suggestion(key, keys) or suggestion(word, sorted(config))


def flat_keys(
  config: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields every key with its sections, as `loss.clip_high`, and its value."""
  for name in config:
    value = config[name]
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      yield from flat_keys(value, f"{above}{name}.")
    else:
      yield f"{above}{name}", value
