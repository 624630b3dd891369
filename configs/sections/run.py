"""Files, processes and evaluations of a run."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `mesh`, `checkpoint`, `processes` and of results."""
  return create(
    # Folder that keeps compiled programs for later starts, of all runs that
    # name it; relative to the run's folder. "" keeps none.
    compile_cache="../compiled",
    mesh=create(
      # Axis that spans the TPU slices of a learner of several: data or fsdp, a
      # multiple of their number.
      over_slices="data",
      # How slices are told apart: devices; or processes, each of which counts
      # as a slice, to rehearse several slices without TPUs.
      slices_of="devices",
    ),
    checkpoint=create(
      keep_every=0,  # updates whose multiples are kept for good; 0: none
      grace_s=30.0,  # time from a signal to stop to the end of the checkpoint
      # Folder or bucket (gs://...) that every process reaches; each run has a
      # folder of its own in it. "" is the run's own folder.
      directory="",
      resume_step=-1,  # update to resume from; -1 is the newest checkpoint
      # Mode of evaluations during RL, greedy or sampled, by which the best
      # version is kept and ends the run; "": the last version does.
      keep_best="",
    ),
    processes=create(  # of the learner, where there are several
      join_timeout_s=300.0,  # wait for each other's start and end
      heartbeat_timeout_s=100.0,  # after which a silent machine counts as lost
      wait_timeout_s=14400.0,  # of the others' wait for process 0
    ),
    evaluation=create(
      num_sampled=256,  # tasks of num_tasks that are also sampled; 0: none
      num_untrained=64,  # tasks of num_tasks for the untrained policy; 0: none
      scripted=True,  # score the environments' scripted baselines beside it
      temperature=1.0,  # of answers in the sampled evaluation
      timeout_s=3600.0,  # longest wait for the end of another episode
      # Let the agents of agents.port play the policy's evaluations at the ends
      # of stages, as they play those during RL. False: the environments do.
      agents=False,
      # Of evaluations during RL: the split of their tasks; "train" holds them
      # out of the warm start and of RL.
      split="train",
      num_tasks_during=64,  # tasks per environment, played greedily
      num_sampled_during=64,  # tasks of these that are also sampled
      concurrency_during=32,  # episodes at once, beside those of training
    ),
    report=create(
      num_episodes=6,  # episodes that the report shows
      # Groups whose trajectories are kept per update, even over tasks and
      # outcomes.
      keep_groups=4,
      # Share of groups whose spans go to traces.jsonl, and to an OpenTelemetry
      # collector if the environment names one: docs/reading_a_run.md.
      trace_share=0.0,
    ),
  )
