"""A config that cannot work is refused at once, in words that help."""

import asyncio
import dataclasses

from absl.testing import parameterized

from agentrl_jax.data.records import Task
from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import ConfigError
from configs import base, environments, quickstart
from launch.config.settings import read_settings
from launch.run.results import changes
from launch.serving.remote import speaking


def sums(**changes):
  """A config whose one environment is added, as the docs show; and changed."""
  config = base.get_config()
  section = environments.entry(
    "environments.arithmetic.environment:Arithmetic",
    mistakes={"wrong_sum": 0.5},
  )
  for key, value in changes.items():
    if value is None:
      del section[key]
    else:
      section[key] = value
  with config.unlocked():
    config.environments.sums = section
    config.tasks.weights.sums = 1.0
  config.tasks.names = ("sums",)
  return config


class AddedEnvironmentTest(parameterized.TestCase):
  def test_plays_where_its_place_says(self):
    config = sums()
    config.environments.sums.place.worker = "http://h:1/api"
    place = read_settings(config).environments["sums"].place
    self.assertEqual(place.worker, "http://h:1/api")

  def test_plays_in_the_process_without_a_place(self):
    place = read_settings(sums(place=None)).environments["sums"].place
    self.assertFalse(place.is_elsewhere)

  @parameterized.parameters("target", "options", "mistakes")
  def test_a_missing_key_is_named(self, key):
    with self.assertRaisesRegex(ConfigError, rf"environments\.sums\.{key} is"):
      read_settings(sums(**{key: None}))

  def test_keys_that_nobody_reads_are_refused(self):
    with self.assertRaisesRegex(ConfigError, r"sums has no key plaice"):
      read_settings(sums(plaice={}))
    with self.assertRaisesRegex(ConfigError, r"sums\.place has no key port"):
      read_settings(sums(place={"port": 3}))

  def test_a_weight_is_needed(self):
    config = sums()
    with config.unlocked():
      del config.tasks.weights["sums"]
    with self.assertRaisesRegex(ConfigError, r"tasks\.weights\.sums is miss"):
      read_settings(config)

  @parameterized.parameters(-0.1, 1.01, float("nan"), True, "0.5", None)
  def test_a_mistake_has_a_probability(self, rate):
    with self.assertRaisesRegex(ConfigError, r"sums\.mistakes: wrong_sum=.* 1"):
      read_settings(sums(mistakes={"wrong_sum": rate}))


class SettingsTest(parameterized.TestCase):
  def test_shipped_configs_are_sound(self):
    for config in (base.get_config(), quickstart.get_config()):
      settings = read_settings(config)
      self.assertEqual(settings.task_ids, {"dbbench": 0, "webshop": 1})

  @parameterized.named_parameters((name, name) for name in environments.NAMES)
  def test_an_environment_takes_what_its_config_offers(self, name):
    config = environments.get_config()[name]
    environment = load_environment(config.target, config.options.to_dict())
    self.assertEqual(environment.name, name)
    mistakes = dict.fromkeys(config.mistakes.to_dict(), 0.5)
    task = Task(name, "train", 0)
    environment.expert(task, seed=0, mistakes=mistakes)
    asyncio.run(environment.close())

  def test_every_section_is_read(self):
    settings = read_settings(quickstart.get_config())
    config = quickstart.get_config()
    self.assertEqual(settings.loss.token_chunk, config.loss.token_chunk)
    self.assertEqual(settings.engine.slots, config.engine.slots)
    self.assertEqual(dataclasses.asdict(settings.group), config.group.to_dict())

  @parameterized.named_parameters(
    ("no_task", {"tasks.names": ()}, "tasks.names is empty"),
    ("unknown_task", {"tasks.names": ("chess",)}, "'chess' is not one of"),
    ("held_out", {"tasks.held_out": ("chess",)}, "held_out is 'chess'|'chess'"),
    (
      "all_held_out",
      {"tasks.held_out": ("webshop", "dbbench")},
      "there is nothing to train on",
    ),
    ("weight", {"tasks.weights.webshop": 0.0}, "webshop=0.0 must be above 0"),
    ("greedy", {"sampling.temperature": 0.0}, "temperature=0.0 must be pos"),
    ("context", {"engine.context": 256}, "engine.context=256 is below"),
    ("row", {"train.row_length": 256}, "train.row_length=256 is below"),
    (
      "router_replay",
      {"engine.router_replay": True},
      "engine.router_replay=True routes .* model.num_experts=0 has none",
    ),
    (
      "replay_of_vllm",
      {
        "engine.router_replay": True,
        "model.num_experts": 4,
        "model.experts_per_token": 2,
        "rollouts.servers": "a:1",
        "rollouts.protocol": "openai",
        "rollouts.model": "m",
      },
      "engine.router_replay=True .* rollouts.protocol='openai' does not tell",
    ),
    (
      "no_agents",
      {"agents.idle_timeout_s": 5.0},
      "agents.idle_timeout_s=5.0 means nothing with agents.port=-1",
    ),
    (
      "no_evaluations_during",
      {
        "evaluation.every": 0,
        "evaluation.num_tasks_during": 32,
        "evaluation.num_sampled_during": 8,
      },
      "num_tasks_during=32, evaluation.num_sampled_during=8 means nothing .* "
      "--config.evaluation.num_tasks_during=64 --config.evaluation",
    ),
    ("queue", {"queue.max_groups": 8}, "queue.max_groups=8 is below"),
    ("policy_slots", {"engine.slots": (64,)}, "one entry per policy slot"),
    (
      "not_stored",
      {"cross_policy.policy_slots": ("fresh", "every 7")},
      r"policy_slots\[1\]='every 7' .*checkpoint.every=5 does not keep them",
    ),
    (
      "step_not_stored",
      {"cross_policy.policy_slots": ("fresh", "steps 0,7")},
      "no checkpoint is written of update 7",
    ),
    (
      "step_too_late",
      {"cross_policy.policy_slots": ("fresh", "steps 0,40")},
      "update 40 is not before the end, train.steps=40",
    ),
    ("micro", {"mesh.data": 4}, "micro_batch=7 rows cannot be split over"),
    ("steps", {"train.steps": 0}, "train.steps=0 must be at least 1"),
    (
      "no_bias",
      {"optimizer.expert_bias_rate": 0.1},
      "expert_bias_rate=0.1 changes .*sigmoid_router=False and lora.rank=0",
    ),
    (
      "no_task_without_chats",
      {"tasks.names": (), "train.steps": 0},
      "tasks.names is empty; name one of .* warm_start.chats",
    ),
    (
      "chats_that_nobody_reads",
      {"warm_start.chats": "chats.jsonl", "warm_start.epochs": 0},
      "chats=chats.jsonl means nothing with warm_start.epochs=0",
    ),
    (
      "refills",
      {
        "group.size": 1,
        "advantage.keep": "all",
        "admission.refills_per_step": 4,
      },
      "group.size=1 always has",
    ),
    ("heads", {"model.num_heads": 3}, "num_heads=3 must be a multiple"),
    ("headless", {"loss.value_coefficient": 0.5}, "a critic needs"),
    ("idle_head", {"model.value_head": True}, "do not go together"),
    (
      "criticless",
      {"advantage.estimator": "gae", "advantage.keep": "all"},
      "a head .--config.model.value_head=True",
    ),
    (
      "gspo",
      {
        "loss.surrogate": "gspo",
        "loss.dual_clip": 0.0,
        "advantage.estimator": "gigpo",
      },
      "surrogate=gspo_token",
    ),
    (
      "team",
      {
        "advantage.estimator": "pass_at_k",
        "advantage.estimator_settings": {"k": 9},
      },
      "k=9 attempts cannot be drawn from group.size=8",
    ),
    (
      "weights_of_engines_of_others",
      {
        "engine.weights": "int8",
        "rollouts.servers": "127.0.0.1:8000",
        "rollouts.protocol": "openai",
      },
      "engine.weights='int8' is not for .*protocol='openai'.*weights=full",
    ),
    (
      "weights_that_nothing_corrects_for",
      {"engine.weights": "fp8", "loss.proximal": "recomputed"},
      "engine.weights='fp8' samples by other .*importance=truncated",
    ),
    ("tensor", {"mesh.tensor": 3}, "num_kv_heads=.* over mesh.tensor=3 dev"),
    ("cut_row", {"mesh.sequence": 11}, "row_length=.* mesh.sequence=11 dev"),
    (
      "splash",
      {"compute.attention": "splash", "train.row_length": 1000},
      "row_length=1000 must be a multiple of 128.*row_length=1024",
    ),
    (
      "no_reference",
      {"reference.place": "dropped", "loss.kl_coefficient": 1e-3},
      "reference.place='dropped' keeps none",
    ),
    (
      "idle_reference",
      {"reference.place": "offloaded", "loss.kl_coefficient": 0.0},
      "means nothing with loss.kl_coefficient=0",
    ),
    ("stride", {"admission.versions_per_step": 3}, "40 is no multiple"),
    (
      "age_below_staleness",
      {"queue.max_age": 0, "admission.max_staleness": 2},
      "queue.max_age=0 is below admission.max_staleness=2",
    ),
    (
      "evaluation_by_agents_that_are_not_let_in",
      {"evaluation.agents": True},
      "evaluation.agents=True means nothing with agents.port=-1",
    ),
    (
      "subagents_of_agents",
      {"subagent.tool": "delegate", "agents.port": 0},
      "agents.port to -1",
    ),
    (
      "subagents_that_cannot_end",
      {"subagent.tool": "delegate", "sampling.calls": "required"},
      "sampling.calls=well_formed",
    ),
    ("compared_roles_of_nobody", {"advantage.compare": "roles"}, "one agent"),
    ("trained_roles_of_nobody", {"train.roles": ("plan",)}, "one agent"),
    (
      "unknown_roles_of_subagents",
      {"subagent.tool": "delegate", "train.roles": ("plan",)},
      "'planner' and 'worker'",
    ),
    (
      "a_program_with_an_open_quote",
      {"agents.port": 0, "agents.program": "python 'a.py"},
      "agents.program=.*No closing quotation",
    ),
    ("subagents_of_nobody", {"subagent.max_turns": 3}, "without subagent.tool"),
    (
      "short_wait",
      {"rollouts.servers": "a:1", "waits.answer_timeout_s": 540.0},
      "waits.answer_timeout_s=540 must be above rollouts.answer_timeout_s=540",
    ),
    ("alone", {"group.size": 1}, "leaves nothing to compare"),
  )
  def test_refuses(self, flat, message):
    config = quickstart.get_config()
    config.update_from_flattened_dict(flat)
    with self.assertRaisesRegex(ConfigError, message):
      read_settings(config)

  def test_changes_name_what_a_config_changes(self):
    config = base.get_config()
    config.loss.clip_high = 0.28
    self.assertEqual(changes(config), {"loss.clip_high": (0.2, 0.28)})

  def test_engines_of_others_know_no_grammars(self):
    config = quickstart.get_config()
    config.sampling.calls = "well_formed"
    config.rollouts.update(servers="host:1", protocol="openai")
    with self.assertRaisesRegex(
      ConfigError, "sampling.calls=well_formed.*rollouts.protocol=openai do no"
    ):
      speaking(read_settings(config), 1.0)
    config.rollouts.protocol = "agentrl"
    speaking(read_settings(config), 1.0)
