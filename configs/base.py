"""Every setting there is, with the value it has unless someone changes it.

A setting that is not here does not exist: the config is locked, so a misspelt
override fails at launch. Comments give the unit or the choices. Values are
AgentRL's (arXiv:2510.04206) where it has one; the model is a small one.
"""

import ml_collections
from ml_collections.config_dict import create, placeholder

from configs import environments


def get_config() -> ml_collections.ConfigDict:
  """AgentRL on two of its environments, embedded in the process."""
  c = ml_collections.ConfigDict()
  c.name = "run"  # the run's folder below workdir
  c.workdir = "runs"
  # Where compiled programs are kept for the next start: a folder, within the
  # run's unless it is absolute; "" keeps none.
  c.compile_cache = "compiled"
  c.seed = 0

  # Devices along each axis: copies of the policy, shares of its params, shares
  # of its heads and channels, shares of a row's tokens.
  c.mesh = create(data=1, fsdp=1, tensor=1, sequence=1)

  c.tasks = create(
    names=("dbbench", "webshop"),  # of those in `configs/environments.py`
    # How often each comes, against the others.
    weights=create(**dict.fromkeys(environments.NAMES, 1.0)),
  )
  c.environments = environments.get_config()
  c.containers = create(
    registry="agentrl_jax",  # what the names of images begin with
    concurrency=64,  # sessions at once in one container
    memory_mb=2048,
    cpus=1.0,
    pids=512,
    scratch_mb=512,  # of /tmp, which counts as memory
    mounts=(),  # folders that they may read, at the same path
    network="internal",  # or "bridge": for engines that are not on this host
    start_timeout_s=120.0,
  )

  c.tokenizer = create(
    vocab_size=1024,  # tokens, bytes and markers included
    num_texts=2000,  # demonstrations that it is trained on
    whole_tokens=(),  # texts that are one token each
    whole_lines=0,  # as many of the lines that conversations share, likewise
  )
  c.pretrained = create(
    # A Hugging Face folder to start from: config.json, *.safetensors and the
    # tokenizer. It replaces `tokenizer` and the architecture in `model`.
    path="",
  )
  c.chat = create(  # what its chat template asks for
    date="2024-07-26",  # that it takes for today's, on every day of a run
    thinking=True,  # or False: the cue to answer closes the thought
  )
  c.model = create(
    # A published one, of agentrl_jax/model/presets.py: it replaces the keys
    # below it, but for value_head. "" takes them.
    name="",
    width=192,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_width=384,
    rope_theta=1e4,
    rope_factor=1.0,  # that Llama 3 stretches long wavelengths by; 1 is off
    rope_low_frequency=1.0,  # turns within the original context
    rope_high_frequency=4.0,
    rope_original_context=0,  # tokens
    partial_rotary_factor=1.0,  # of a head's channels that turn
    norm_epsilon=1e-6,
    tied_embedding=True,
    embedding_scale=1.0,
    qk_norm=True,
    qkv_bias=False,
    sandwich_norm=False,  # GLM-4's norms after attention and after the MLP
    value_head=False,  # a critic, for the gae family of advantages
  )
  c.lora = create(  # adapters that are trained in place of the params
    rank=0,  # 0 trains the params themselves
    alpha=16.0,  # over rank: what the adapters are scaled by
    targets=("q", "k", "v", "o", "gate", "up", "down"),
  )
  c.compute = create(  # the names are described in model/compute.py
    dtype="float32",  # of activations and products; or bfloat16
    scan_layers=False,  # one compiled layer for all, for deep models
    remat="none",  # dots, attention, full: what is computed again
    attention="auto",  # or xla, splash (TPU), cudnn (GPU)
    attention_block=0,  # queries per block of a training row; 0 takes all
    cache_attention="auto",  # of decode steps; or xla, ragged (TPU)
  )

  c.warm_start = create(
    num_demonstrations=20_000,
    epochs=1,  # passes over the demonstrations; 0 needs pretrained.path
    optimizer=create(
      learning_rate=2e-3,
      warmup_steps=50,
      final_lr_ratio=0.1,  # of the learning rate, reached by cosine
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
    batch_timeout_s=3600.0,  # that the learner waits for a batch
    # That the controller waits for one step of the learner: its updates,
    # compilation and checkpoint.
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
  c.loss = create(  # the names are described in train/config.py
    # Or reinforce, cispo, gspo, gspo_token, sapo, gmpo; or module:function, a
    # function of your own, here and where the next comments say so. What each
    # is given, and how its settings are checked, is in docs/losses.md.
    surrogate="clipped",
    surrogate_settings=create(),  # keyword arguments of such a function
    # module:function of the whole batch, which each token's surrogate is
    # multiplied by; "" is 1.
    token_weight="",
    token_weight_settings=create(),
    clip_low=0.2,  # below 1; of cispo 1 is no bound, of gmpo nats
    clip_high=0.2,
    dual_clip=3.0,  # bound on the ratio of bad tokens; 0 is off
    sapo_tau_positive=1.0,  # of sapo's gate, where the advantage is positive
    sapo_tau_negative=1.05,
    proximal="behavior",  # or "recomputed": decoupled PPO
    importance="none",  # truncated, masked: proximal policy to sampler
    importance_level="token",  # or sequence, sequence_mean
    importance_low=0.0,
    importance_high=2.0,
    # Nats per token beyond which failures count as unlearnt; 0 is off.
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
    kl_limit=10.0,  # on one token's k3 in the loss
    entropy_coefficient=0.0,
    value_coefficient=0.0,  # of the critic's loss, where there is a critic
    value_clip=0.0,  # on how far a value moves in an update; 0 is off
    token_chunk=128,  # tokens per row whose logits are held at once
    vocab_chunk=0,  # words of them; 0 takes all
  )
  c.reference = create(
    place="resident",  # on the devices; offloaded to the hosts, or dropped
  )
  c.advantage = create(
    # One of ESTIMATORS in agentrl_jax/train/config.py, or
    # module:function.
    estimator="grpo",
    estimator_settings=create(),
    scale_by_std=True,  # by the group's standard deviation
    ddof=1,  # of that deviation: 1 is unbiased
    k=1,  # attempts that count as one, of pass_at_k and max_at_k
    discount=1.0,  # per turn, of turn_return, gigpo, turn_gae; else per token
    turn_discount=1.0,  # of bi_level_gae
    gae_lambda=0.95,  # lambda of the gae family
    step_weight=1.0,  # of a turn's advantage in gigpo
    # Groups that the loss is a mean over; or signal, std, top_share,
    # top_signal, module:function.
    keep="all",
    keep_settings=create(),
    keep_threshold=0.0,  # of std, top_share and top_signal
    whiten=False,  # over the batch, in place of task normalisation
    task_center=True,  # task advantage normalisation: subtract the mean
    task_scale=True,  # and divide by the standard deviation
    task_statistics="tokens",  # or "trajectories": what counts once
    task_decay=0.0,  # what the past keeps per update; 0 is this batch alone
    incomplete_reward=-0.2,  # of an attempt that did not complete
    epsilon=1e-6,
  )

  c.episode = create(
    max_turns=20,
    max_tokens=8192,  # prompt, observations and answers together
    max_answer_tokens=1024,  # of one answer
  )
  c.waits = create(  # of an attempt, in seconds
    session_timeout_s=300.0,  # for its environment to open, and to close
    reply_timeout_s=300.0,  # for each reply of the environment
    answer_timeout_s=600.0,  # for each answer of the engine
  )
  c.sampling = create(
    temperature=0.8,
    top_k=0,
    top_p=1.0,
    # What grammars hold calls to, in training and evaluation: free, well_formed
    # (a tool's name, arguments that fit its schema), or required (likewise, and
    # one at least per answer).
    calls="free",
  )
  c.group = create(
    size=8,  # attempts at a task
    deadline_s=3600.0,  # then a group is handed over as it is
  )
  c.retry = create(  # of an attempt that broke by no fault of the policy
    max_retries=2,
    backoff_s=0.5,  # before the first; doubles with each
  )
  c.admission = create(
    groups_per_step=256,  # that the learner takes at a time
    versions_per_step=1,  # updates that it makes of them
    max_staleness=1,  # versions between sampling and training
    max_concurrent_groups=256,
  )
  c.queue = create(
    max_groups=256,  # finished groups wait above this
    order="finished",  # or "started": no batch depends on timing, but waits
    # Versions from starting to taking, admission.max_staleness at least;
    # None: any.
    max_age=placeholder(int),
  )
  c.cross_policy = create(
    draw_per="turn",  # or "trajectory", "never"
    # What each policy slot serves: "fresh"; "every 25", the newest such
    # update; "every 25 lag 50", at least 50 old; "steps 0,100", the newest of
    # them; "steps 300 of FOLDER", of another run's checkpoints.
    policy_slots=("fresh", "every 25"),
    weights=(0.75, 0.25),  # of the policy slots
  )
  c.policy_slot_weights = create(  # the formula is in docs/cross_policy.md
    # Or "adaptive": cross_policy.weights is where they begin, and what they
    # are drawn back to; what follows is read then only.
    rule="fixed",
    temperature=0.05,  # success per draw that multiplies a weight by e
    exploration=0.5,  # share of success that only a group's best counts for
    kl_cost=1.0,  # success per draw that a nat per token must bring
    floor=0.02,  # least weight of a policy slot
    min_sample_size=0.8,  # effective, a share of the tokens; 0 is no bound
    memory=0.9,  # of what was seen, per batch
    prior_draws=100.0,  # turns (or attempts) that knowing nothing counts as
  )
  c.engine = create(
    # Or "local": one thread. With queue.order="started" and
    # admission.max_staleness=0 a run then repeats bit for bit.
    driver="jetstream",
    slots=(192, 64),  # answers decoded at once, per policy slot
    context=8192,  # tokens of prompt and answer together
    lengths=(),  # tokens; shorter caches to compile for
    num_slot_sizes=3,  # sizes of the slots in use to compile for
    prefill_chunks=(16, 64),  # tokens per slot and call
    prefill_slots=16,  # slots per call
    prefill_tokens=1024,  # per step, so that decoding does not stall
    steps_per_sync=4,  # tokens per slot between looks at the host
    reuse=True,  # of keys and values, between turns and between attempts
    # Tokens per policy slot whose keys and values outlive their slot: on the
    # device, then on the host; 0: none. See docs/engine.md.
    prefix_cache_tokens=0,
    prefix_cache_host_tokens=0,
    block_size=32,  # what of them is moved and shared at once
    # Sets of older weights per policy slot that are kept for answers begun on
    # them; 0: at a swap, answers go on with the new weights.
    old_weights=0,
    slices=(),  # devices of each policy slot; (): all on all of them
  )
  c.rollouts = create(  # servers in other processes: docs/rollout_servers.md
    servers="",  # host:port,host:port; "": the engine is in this process
    # What they speak: agentrl, of launch.serve_rollouts; or openai (vLLM) and
    # sglang, of other projects' engines: docs/engines.md.
    protocol="agentrl",
    model="",  # its name at such engines; "" is the first that they list
    # A file whose first line is their token, or env:NAME; "": they want none.
    token_file="",
    need_seeds=True,  # of such engines: a seed repeats an answer
    snapshots="",  # folder or bucket of weights; "" is snapshots of the run
    max_lag=2,  # updates that weights may be behind the learner's
    poll_interval_s=0.5,  # between a server's looks at the snapshots
    health_interval_s=1.0,  # between the learner's looks at a server
    server_timeout_s=20.0,  # without a word from a server: it is lost
    answer_timeout_s=540.0,  # for an answer, tries on other servers included
    sync_timeout_s=600.0,  # for every server to serve what is evaluated
    start_timeout_s=3600.0,  # that a server waits for its first weights
    grace_s=30.0,  # that a server told to stop finishes answers
  )
  c.agents = create(  # that play in place of ours: docs/serving.md
    port=-1,  # that they call, in this process; 0: any; -1: ours play
    host="127.0.0.1",  # 0.0.0.0 lets other machines in
    token_file="",  # its first line is the token they must know; "": none
    idle_timeout_s=600.0,  # without a word from an agent: it is taken for gone
  )
  # What requests may take of a server: of agents' calls and of rollout servers.
  c.http = create(
    head_timeout_s=30.0,  # for a head; then an idle connection is closed
    body_timeout_s=60.0,  # for a request's body, from its head on
    max_body=8 << 20,  # bytes of a body, decompressed
    max_bodies=256 << 20,  # bytes of all bodies that are on their way
    compile_timeout_s=1.0,  # CPU seconds to compile the grammar of a request
  )
  c.checkpoint = create(
    every=25,  # updates
    keep=3,  # newest ones
    keep_every=0,  # updates whose multiples are kept for good; 0 is none
    grace_s=30.0,  # from a signal to stop to the end of the checkpoint
    # Folder or bucket (gs://...) that every process reaches, below which they
    # are kept by the run's name; "" is the run's own folder.
    directory="",
    resume_step=-1,  # -1 is the newest
  )
  c.processes = create(  # of the learner, where there are several
    join_timeout_s=300.0,  # that they wait for each other to start or end
    heartbeat_timeout_s=100.0,  # after which a silent machine counts as lost
    wait_timeout_s=14400.0,  # that the others wait for a word of process 0
  )
  c.evaluation = create(
    num_tasks=256,  # held-out tasks per environment
    num_untrained=64,  # of them, for the policy that has learned nothing
    concurrency=256,  # attempts at once
    temperature=1.0,  # of the sampled evaluation
    timeout_s=3600.0,
  )
  c.report = create(num_episodes=6, keep_groups=4)
  return c.lock()
