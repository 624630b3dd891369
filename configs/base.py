"""Every config key, with its default.

A key that is not here does not exist: the config is locked, so a misspelt
override fails at launch. Comments give the unit or the choices. Numbers are
finite; their ranges are in `launch/config/numbers.py`. Defaults are AgentRL's
(arXiv:2510.04206) where it has one; the model is a small one.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import ml_collections
from ml_collections.config_dict import create

from configs import environments

_Settings = TypeVar("_Settings")


def get_config() -> ml_collections.ConfigDict:
  """AgentRL on two of its environments, played in this process."""
  c = create(
    name="run",  # folder of the run, below workdir
    workdir="runs",
    # Folder that keeps compiled programs for the next start, within the run's
    # folder unless it is absolute; "" keeps none.
    compile_cache="compiled",
    seed=0,
  )

  # Devices along each axis: copies of the policy, shards of its params, shards
  # of its heads and channels, shards of a row's tokens.
  c.mesh = create(
    data=1,
    fsdp=1,
    tensor=1,
    sequence=1,
    # Axis that spans the TPU slices of a learner of several: data or fsdp, a
    # multiple of their number.
    over_slices="data",
    # How slices are told apart: devices; or processes, each of which counts as
    # a slice, to rehearse several slices without TPUs.
    slices_of="devices",
  )

  c.tasks = create(
    names=("dbbench", "webshop"),  # of those in `configs/environments.py`
    # Of these, what reinforcement learning leaves out. Demonstrations and
    # evaluations have it: what does a policy learn of it from the others?
    held_out=(),
    # Relative frequency of each environment's tasks.
    weights=create(**dict.fromkeys(environments.NAMES, 1.0)),
  )
  c.task_weights = create(  # the formula is in agentrl_jax/data/task_weights.py
    # Or "signal": a task weighs less while few of its groups have a signal, so
    # that not all attempts have the same reward.
    rule="fixed",
    floor=0.25,  # least weight, as a share of tasks.weights
    memory=0.95,  # share of the evidence kept per group of a task
  )
  c.environments = environments.get_config()
  c.containers = create(  # limits of each container that plays an environment
    registry="agentrl_jax",  # prefix of the images' names
    concurrency=64,  # sessions at once in one container
    memory_mb=2048,
    cpus=1.0,
    pids=512,
    scratch_mb=512,  # of /tmp, which counts as memory
    mounts=(),  # folders mounted read-only, at the same path
    network="internal",  # or "bridge", for Docker engines on other hosts
    start_timeout_s=120.0,
  )

  c.tokenizer = create(  # of a run without a pretrained model
    vocab_size=1024,  # tokens, bytes and markers included
    num_texts=2000,  # demonstrations that it is trained on
    whole_tokens=(),  # texts that are one token each
    whole_lines=0,  # number of frequent lines that become one token each
    spaces_apart=False,  # a word has the same token after a space as elsewhere
  )
  c.pretrained = create(
    # Hugging Face folder to start from: config.json, *.safetensors and the
    # tokenizer. It replaces `tokenizer` and the architecture in `model`.
    path="",
  )
  c.chat = create(  # variables of the pretrained model's chat template
    date="2024-07-26",  # "today" of the template, the same on every day
    thinking=True,  # False: the generation prompt closes the thought
  )
  c.model = create(
    # A published model, see agentrl_jax/model/hugging_face/presets.py: it
    # replaces the keys below it, except value_head. "" uses those keys.
    name="",
    width=192,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_width=384,
    rope_theta=1e4,
    rope_factor=1.0,  # by which Llama 3 scales long wavelengths; 1 is off
    rope_low_frequency=1.0,  # rotations within the original context
    rope_high_frequency=4.0,
    rope_original_context=0,  # tokens
    partial_rotary_factor=1.0,  # share of a head's channels that rotate
    norm_epsilon=1e-6,
    tied_embedding=True,
    embedding_scale=1.0,
    qk_norm=True,
    qkv_bias=False,
    sandwich_norm=False,  # GLM-4's norms after attention and after the MLP
    value_head=False,  # a critic, for advantage estimators of the gae family
  )
  c.lora = create(  # adapters, trained in place of the params
    rank=0,  # 0 trains the params themselves
    alpha=16.0,  # adapters are scaled by alpha / rank
    targets=("q", "k", "v", "o", "gate", "up", "down"),
  )
  c.compute = create(  # the choices are described in model/compute.py
    dtype="float32",  # of activations and products; or bfloat16
    scan_layers=False,  # compile one layer for all, for deep models
    remat="none",  # recompute in the backward pass: dots, attention or full
    attention="auto",  # or xla, splash (TPU), cudnn (GPU)
    attention_block=0,  # tokens of a block of a training row; 0 takes all
    cache_attention="auto",  # of decode steps; or xla, ragged (TPU)
    # Of XLA, by the generation of TPU; none takes the compiler's defaults. More
    # may follow: auto,xla_tpu_scoped_vmem_limit_kib=65536.
    compiler_options="auto",
  )

  c.warm_start = create(  # supervised training on experts' episodes
    num_demonstrations=20_000,
    epochs=1,  # passes over the demonstrations; 0 needs pretrained.path
    # Folder that keeps the stages up to here for other runs whose keys agree in
    # what these depend on (launch/storage/shared_stages.py); "" keeps none.
    store="",
    # Of heads that copy tokens from the first update on, in all layers of fresh
    # params but the first; see agentrl_jax/model/initialization.py. 0 begins
    # with random heads.
    copy_gain=0.0,
    optimizer=create(
      learning_rate=2e-3,
      warmup_steps=50,
      final_lr_ratio=0.1,  # of the learning rate, reached by cosine decay
      b1=0.9,
      b2=0.95,
      weight_decay=0.01,
      clip_norm=1.0,
    ),
  )
  c.train = create(
    steps=1000,  # optimizer updates of reinforcement learning
    row_length=8192,  # tokens of a packed row
    micro_batch=2,  # rows per forward pass
    # Others, for batches whose lines of tokens are all shorter, from short to
    # long, as "2048 tokens 8 rows" or "4096 tokens 4 rows fsdp=4 tensor=2":
    # with a mesh of its own, to which the learner goes. See docs/sharding.md.
    layouts=(),
    # Tokens that trajectories share are computed once: a row stands for up to
    # so many times its tokens. 1 computes each trajectory by itself.
    sharing=8,
    # Agents of an episode whose answers are trained on, by the roles that they
    # name; () for all. The others answer with the same policy.
    roles=(),
    batch_timeout_s=3600.0,  # the learner's wait for a batch of groups
    # The controller's wait for one step of the learner: updates, compilation
    # and checkpoint.
    step_timeout_s=86400.0,
  )
  c.optimizer = create(
    learning_rate=1e-6,
    warmup_steps=10,
    final_lr_ratio=1.0,
    b1=0.9,
    b2=0.999,
    weight_decay=0.0,
    clip_norm=1.0,
  )
  c.loss = create(  # names: train/config/loss.py
    # Or reinforce, cispo, dppo_tv, dppo_kl, gspo, gspo_token, sapo, gmpo; or
    # module:function, a function of your own, here and where the next comments
    # say so. Its arguments, and the checks of its settings, are in
    # docs/losses.md.
    surrogate="clipped",
    surrogate_settings=create(),  # keyword arguments of your function
    # module:function of the whole batch, whose value multiplies each token's
    # surrogate; "" is 1.
    token_weight="",
    token_weight_settings=create(),
    # Below 1; for cispo 1 is no bound, for gmpo and dppo_kl they are in nats.
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=3.0,  # bound on the ratio where the advantage is negative; 0: off
    sapo_tau_positive=1.0,  # of sapo's gate, where the advantage is positive
    sapo_tau_negative=1.05,
    # Or "recomputed": decoupled PPO. For admission.versions_per_step of 2 or
    # more: in a batch's first update its ratio is 1, and nothing is clipped.
    proximal="behavior",
    importance="none",  # truncated, masked: proximal to behavior policy
    importance_level="token",  # or sequence, sequence_mean
    importance_low=0.0,
    importance_high=2.0,
    # Nats per token beyond which failures are masked as stale; 0 is off.
    stale_failures=0.0,
    # Or sequence_mean, sequence_sum_mean, fixed_length_mean, module:function.
    reduction="token_mean",
    reduction_settings=create(),
    reduction_length=0,  # tokens that fixed_length_mean divides by
    task_share="tokens",  # or "equal": every task weighs the same
    kl_coefficient=1e-4,  # to the reference, the warm start; 0 keeps none
    kl_estimator="k3",  # or k1, k2, k3_k2, unbiased, module:function
    kl_estimator_settings=create(),
    kl_place="loss",  # or "reward"
    kl_limit=10.0,  # bound on one token's k3 in the loss
    entropy_coefficient=0.0,
    value_coefficient=0.0,  # of the critic's loss, where there is a critic
    value_clip=0.0,  # bound on a value's change in an update; 0 is off
    token_chunk=128,  # tokens per row whose logits are in memory at once
    vocab_chunk=0,  # vocabulary entries of them; 0 takes all
  )
  c.reference = create(
    place="resident",  # on the devices; or offloaded to the hosts, or dropped
  )
  c.advantage = create(
    # One of ESTIMATORS in agentrl_jax/train/config/advantage.py, or
    # module:function.
    estimator="grpo",
    estimator_settings=create(),
    # Of the critic: trajectory, or information, which adds what the environment
    # knows of the task in training and the policy never reads: docs/losses.md.
    critic_input="trajectory",
    # What is compared within a group, where an episode has several lines of
    # tokens: episodes, roles (each by its own reward), or lines.
    compare="episodes",
    scale_by_std=True,  # divide by the group's standard deviation
    ddof=1,  # of that deviation: 1 is unbiased
    k=1,  # attempts that count as one, for pass_at_k and max_at_k
    # Per turn for turn_return, gigpo and turn_gae; else per token.
    discount=1.0,
    turn_discount=1.0,  # of bi_level_gae
    gae_lambda=0.95,  # of the gae family
    step_weight=1.0,  # of a turn's advantage in gigpo
    # Filter of groups before the loss takes its mean: all, signal, std,
    # top_share, top_signal, top_softmax, module:function.
    keep="all",
    keep_settings=create(),
    keep_threshold=0.0,  # of std, top_share, top_signal and top_softmax
    whiten=False,  # over the batch, in place of task normalisation
    task_center=True,  # task advantage normalisation: subtract the mean
    task_scale=True,  # and divide by the standard deviation
    task_statistics="tokens",  # or "trajectories": the unit that counts once
    task_decay=0.0,  # share of past statistics kept per update; 0 keeps none
    incomplete_reward=-0.2,  # of an episode that did not complete
    epsilon=1e-6,
  )
  # Of answers and prompts, a sign of collapse: docs/reading_a_run.md.
  c.mutual_information = create(
    every=0,  # updates between measurements; 0: none
    num_answers=64,  # each is scored under the prompts of its task
    max_tokens=256,  # of an answer, from its beginning
  )
  c.collapse_alarm = create(
    action="warn",  # or off; or stop, which ends the run with a checkpoint
    # Of rewards within a group: the mean std of a batch, below a share of that
    # of the first batches or 0, for so many batches in a row. 0: any.
    first_batches=10,
    std_share=0.1,
    std_batches=10,
    # Share of a batch's episodes that succeed at least; less of them, for so
    # many batches in a row, is a collapse. 0: any.
    min_success=0.01,
    success_batches=50,
  )

  c.episode = create(
    max_turns=20,
    max_tokens=8192,  # prompt, observations and answers together
    max_answer_tokens=1024,  # of one answer
  )
  c.curriculum = create(
    # Smaller limits of training episodes while the learner is below a version,
    # as ("5 turns until 20", "10 turns 4096 tokens until 40"). Evaluations have
    # those of `episode`, and so has what follows the last stage.
    limits=(),
    # An episode that a smaller limit ended: score (as one that did not
    # complete), or leave_out (of training, if two of its group are left).
    cut="score",
  )
  # A tool with which the policy gives a part of the task to itself, in a
  # context of its own: docs/environments.md.
  c.subagent = create(
    tool="",  # its name, such as delegate; "": there is none
    description="Gives a part of the task to an assistant that has the same "
    "tools and sees only this text. Returns the assistant's result.",
    system_prompt="Do the task with the tools. Then answer with the result.",
    recap=True,  # the sub-agent reads the environment's first messages too
    max_turns=8,  # answers of a sub-agent; all count for episode.max_turns
  )
  c.waits = create(  # of an episode, in seconds
    session_timeout_s=300.0,  # for its environment to open, and to close
    reply_timeout_s=300.0,  # for each reply of the environment
    answer_timeout_s=600.0,  # for each answer of the engine
  )
  c.sampling = create(
    temperature=0.8,
    top_k=0,
    top_p=1.0,
    # Grammar of tool calls, in training and evaluation: free, well_formed (a
    # tool's name, arguments that fit its schema), or required (the same, and at
    # least one call per answer).
    calls="free",
  )
  c.group = create(
    size=8,  # attempts at a task
    deadline_s=3600.0,  # then a group is handed over with what it has
  )
  c.retry = create(  # of an attempt that a fault ended
    max_retries=2,
    backoff_s=0.5,  # before the first retry; doubles with each
  )
  c.admission = create(
    groups_per_step=256,  # groups of a batch
    versions_per_step=1,  # updates that the learner makes of a batch
    max_staleness=1,  # versions between sampling and training
    max_concurrent_groups=256,
    # Groups without a signal that others replace before they are trained on,
    # per batch; 0: none. With advantage.keep="signal" this is DAPO's dynamic
    # sampling. success/<task> then leaves the replaced groups out, and
    # rollout/success/<task> does not.
    refills_per_step=0,
  )
  c.queue = create(
    max_groups=256,  # capacity; a full queue holds back finished groups
    # Or "started": batches do not depend on timing, at the price of waiting.
    order="finished",
    # Versions from the start of a group to its use, at most; not below
    # admission.max_staleness. The learner waits for a group that would be
    # older, but no longer than `patience` steps: the group is then handed over
    # with the episodes that have ended. So is one of the last quarter of a
    # batch, once it has been played three times as long as the longest of its
    # task's latest. -1: any age, and no wait.
    max_age=8,
    patience=0.25,
  )
  c.cross_policy = create(
    draw_per="turn",  # or "trajectory", "never"
    # Version of each policy slot: "fresh"; "every 25", the newest such update;
    # "every 25 lag 50", at least 50 updates old; "steps 0,100", the newest of
    # them; "steps 300 of FOLDER", of another run's checkpoints.
    policy_slots=("fresh", "every 25"),
    weights=(0.75, 0.25),  # probability of each policy slot
  )
  c.policy_slot_weights = create(  # the formula is in docs/cross_policy.md
    # Or "adaptive": starts from cross_policy.weights and is pulled back to
    # them. The other keys are read only then.
    rule="fixed",
    temperature=0.05,  # success per draw that multiplies a weight by e
    exploration=0.5,  # share of success that only a group's best counts for
    kl_cost=1.0,  # success per draw that a nat per token must bring
    floor=0.02,  # lowest weight of a policy slot
    min_sample_size=0.8,  # effective, as a share of the tokens; 0: no bound
    memory=0.9,  # share of the evidence kept per batch
    prior_draws=100.0,  # turns (or episodes) that the prior counts as
  )
  c.engine = create(
    # Or "local": one thread. With queue.order="started" and
    # admission.max_staleness=0 a run then repeats bit for bit.
    driver="jetstream",
    slots=(192, 64),  # sequences decoded at once, per policy slot
    context=8192,  # tokens of prompt and answer together
    lengths=(),  # tokens; further, shorter cache lengths to compile for
    num_slot_sizes=3,  # numbers of occupied slots to compile for
    prefill_chunks=(16, 64),  # tokens per slot and call
    prefill_slots=16,  # slots per call
    prefill_tokens=1024,  # per step, so that decoding does not stall
    steps_per_sync=4,  # tokens per slot between two syncs with the host
    reuse=True,  # of keys and values, between turns and between episodes
    # Tokens of a page of the KV cache, on a TPU a multiple of 128; 0: each slot
    # has a row for `context` tokens. See "Pages" in docs/engine.md.
    page_size=0,
    cache_tokens=(),  # tokens of all pages, per policy slot; (): no pages
    # Tokens per policy slot that the prefix cache keeps after their sequence
    # has ended: on the device, then on the host; 0: none. See docs/engine.md.
    prefix_cache_tokens=0,
    prefix_cache_host_tokens=0,
    block_size=32,  # tokens of a block of the prefix cache
    # Older sets of weights per policy slot, kept for answers that began on
    # them; 0: after a swap, answers continue with the new weights.
    old_weights=0,
    slices=(),  # devices of each policy slot; (): all share all devices
    # Tokens that a slot guesses from what it, or its group, has had before, and
    # computes together with its next token; 0: none. Changes no answer.
    draft_tokens=0,
    # Time to compute one more token per slot, in units of a decode step: 0.4 on
    # two cores, less where decoding waits for memory. See docs/engine.md.
    draft_cost=0.4,
  )
  c.rollouts = create(  # servers in other processes: docs/rollout_servers.md
    servers="",  # host:port,host:port; "": the engine is in this process
    # Protocol of the servers: agentrl, of launch.serve_rollouts; openai (vLLM)
    # or sglang, of other projects' engines: docs/engines.md.
    protocol="agentrl",
    model="",  # its name at such engines; "" is the first that they list
    # A file whose first line is their token, or env:NAME; "": no token.
    token_file="",
    need_seeds=True,  # require of such engines that a seed repeats an answer
    snapshots="",  # folder or bucket of weights; "" is snapshots of the run
    max_lag=2,  # updates that weights may be behind the learner's
    poll_interval_s=0.5,  # of a server's polls for snapshots
    health_interval_s=1.0,  # of the learner's health checks of a server
    server_timeout_s=20.0,  # without a reply: the server is lost
    answer_timeout_s=540.0,  # for an answer, retries on other servers included
    sync_timeout_s=600.0,  # for every server to serve what is evaluated
    start_timeout_s=3600.0,  # of a server's wait for its first weights
    grace_s=30.0,  # for a server that must stop to finish its answers
  )
  c.agents = create(  # of other libraries, by OpenAI's API: docs/serving.md
    port=-1,  # of the API in this process; 0: any; -1: our own player plays
    host="127.0.0.1",  # 0.0.0.0 accepts other machines
    token_file="",  # its first line is the token they must send; "": none
    idle_timeout_s=600.0,  # without a call: the agent counts as gone
    # Conversations of an episode, each of which is trained on as a line of
    # tokens: of several agents, or of one that rewrites its history. With 1, a
    # call that does not continue the last one is refused.
    max_lines=16,
    # A command that plays, which the run starts; {url} and {model} stand for
    # this server and the run's name. "": agents come by themselves.
    program="",
  )
  # Limits of HTTP requests: of agents' calls and of rollout servers.
  c.http = create(
    head_timeout_s=30.0,  # for a head; then an idle connection is closed
    body_timeout_s=60.0,  # for a body, after its head
    max_body=8 << 20,  # bytes of a body, decompressed
    max_bodies=256 << 20,  # bytes of all bodies that are being received
    compile_timeout_s=1.0,  # CPU seconds to compile a request's grammar
  )
  c.checkpoint = create(
    every=25,  # updates
    keep=3,  # newest checkpoints
    keep_every=0,  # updates whose multiples are kept for good; 0: none
    grace_s=30.0,  # from a signal to stop to the end of the checkpoint
    # Folder or bucket (gs://...) that every process reaches; each run has a
    # folder of its own in it. "" is the run's own folder.
    directory="",
    resume_step=-1,  # -1 is the newest
  )
  c.processes = create(  # of the learner, where there are several
    join_timeout_s=300.0,  # for each other's start and end
    heartbeat_timeout_s=100.0,  # then a silent machine counts as lost
    wait_timeout_s=14400.0,  # of the others' wait for process 0
  )
  c.evaluation = create(
    num_tasks=256,  # held-out tasks per environment
    num_sampled=256,  # of them, for sampled answers
    num_untrained=64,  # of them, for the untrained policy
    scripted=True,  # score the environments' scripted baselines beside it
    concurrency=256,  # episodes at once
    temperature=1.0,  # of the sampled evaluation
    timeout_s=3600.0,  # without the end of an episode
  )
  # Episodes in the report; groups whose trajectories are kept per update, even
  # over tasks and outcomes.
  c.report = create(
    num_episodes=6,
    keep_groups=4,
    # Of the groups whose spans go to traces.jsonl, and to an OpenTelemetry
    # collector if the environment names one: docs/reading_a_run.md.
    trace_share=0.0,
    # Copies of the metrics at "wandb" or "mlflow", whose own variables say
    # where: docs/reading_a_run.md.
    trackers=(),
  )
  return c.lock()


def defaults(
  settings: Callable[..., _Settings], section: str, **changes: Any
) -> _Settings:
  """Makes the class of a section from its defaults and the changes.

    loss = defaults(LossConfig, "loss", clip_high=0.28)

  Such a class has no defaults of its own. Keys that it does not take, such as
  `engine.driver`, are left out.
  """
  fields = inspect.signature(settings).parameters
  keys = get_config()[section].to_dict().items()
  return settings(**{k: v for k, v in keys if k in fields} | changes)
