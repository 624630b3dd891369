"""Speed of the rollout engine, against its peers and its limits.

  python -m bench.rollout                       # all rows
  python -m bench.rollout decode batching       # some
    [--pairs=5] [--peer_python=.venv-peers/bin/python]
    [--tunix_python=.venv-tunix/bin/python]
    [--llama_python=.venv-llama/bin/python]

- decode: 1, 8 and 32 answers at once, against Tunix's sampler and transformers.
- batching: answers of very different lengths, against list scheduling.
- versions: three versions at once, against reading each; a swap while decoding.
- overhead: what the host does per step of 128 slots.
- grammar: answers that follow a grammar, against free ones; masks alone.
- hostile: the wait of other requests during one request of the worst kind.
- drift: the sampler's log-probabilities against the learner's.
- draft: drafts of tokens, against decoding without; see bench/rollout/draft.py.
- published: 1, 8, 16 and 32 answers by the model in the folder BENCH_MODEL,
  against transformers, Tunix and llama.cpp; only if named.
- published_draft: drafts on attempts of that model at the same problems,
  against decoding without; only if named.

Float32 on the CPU, on both sides. Peers take turns with our code; the result is
the median of the ratios on an otherwise idle machine: `contended` says whether
other processes ran. Prints one JSON object per row.
"""

from bench import rows

ROWS = (
  "decode",
  "batching",
  "versions",
  "overhead",
  "grammar",
  "hostile",
  "drift",
  "draft",
)
NAMED = ("published", "published_draft")

if __name__ == "__main__":
  rows.run(__doc__, "rollout", ROWS, named=NAMED)
