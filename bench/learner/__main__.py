"""Speed of the learner, against its peers and its limits.

  python -m bench.learner                       # all rows
  python -m bench.learner train_step packing    # some
    [--pairs=5] [--peer_python=.venv-peers/bin/python]
    [--tunix_python=.venv-tunix/bin/python]

- train_step: an update of W-tiny, against transformers and XLA's product rate.
- packing: useful tokens per second of packed rows, against padded ones.
- shared: an update on attempts that share tokens, as a tree, against each by
  itself; on one prompt with answers, and on groups of the five environments.
- delta_rule: the gated delta rule in chunks, against its recurrence.
- collectives: bytes that devices exchange per update, against the formula.
- checkpoint: the time that saving blocks, against a copy of the same bytes.
- rl_step: sampling and one update, against Tunix and TRL.
- published: an update of the model in the folder BENCH_MODEL, against
  transformers and TRL's way to run it; only if named.
- published_rl_step: sampling and one update of that model, against Tunix and
  TRL; only if named.

Float32 on the CPU, on both sides. Peers take turns with our code; the result is
the median of the ratios on an otherwise idle machine: `contended` says whether
other processes ran. Prints one JSON object per row.

An update takes gigabytes of fresh memory; with

  GLIBC_TUNABLES=glibc.malloc.hugetlb=1

in the environment, which peers inherit, the memory comes in pages of 2 MiB
where the kernel offers them on request.
"""

from bench import rows

ROWS = (
  "train_step",
  "packing",
  "shared",
  "delta_rule",
  "collectives",
  "checkpoint",
  "rl_step",
)
NAMED = ("published", "published_rl_step")

if __name__ == "__main__":
  rows.run(__doc__, "learner", ROWS, named=NAMED)
