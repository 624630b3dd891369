"""Learns databases and a web shop on two cores, from nothing.

  make train
  python -m launch.train --config=configs/quickstart.py --config.seed=1

A policy of 1.8 million parameters: its tokenizer, a warm start on experts that
make mistakes on purpose, then reinforcement learning in the asynchronous
pipeline. Pages and prompts are AgentBench's in a compact form; grading is
AgentBench's own. Tables, shops and instructions of the test never occur in
training.
"""

from configs import base

# Names of DBBench's rows, such as "Olga Gray": one token each, since a small
# policy learns late to copy the second word of a name. A test compares them.
NAMES = tuple(
  f"{first} {second}"
  for firsts, seconds in (
    (
      "Anna Ben Cara David Ella Frank Grace Henry Iris Jack Kate Leo Mia Noah "
      "Olga Paul Rosa Sam Tina Victor",
      "Adams Baker Clark Davis Evans Fisher Gray Hill Jones King Lopez Moore "
      "Novak Owens Parker Reed Smith Turner Walker Young",
    ),
    (
      "Blue Bold Calm Dark Fast Gold Grand Green High Iron Lucky North Old "
      "Quick Red Silver South Sunny White Wild",
      "Bear Bridge Crown Eagle Falcon Forest Garden Harbor Lion Moon Mountain "
      "Ocean Palace River Star Storm Tiger Tower Valley Wolf",
    ),
  )
  for first in firsts.split()
  for second in seconds.split()
)
# Texts around the words that an answer copies. With the space that follows it
# in the token, an option or an id is the same token on a page and in a click.
WHOLE_TOKENS = (
  "Additional table information about the question: The name of this table is",
  ", and the headers of this table are",
  ".\nQuestion:",
  "[('",
  "',), ('",
  "',)]",
  "WebShop [SEP] Instruction: [SEP] ",
  ": ",
  ", and price lower than ",
  ".00 dollars [SEP] Search",
  "Page 1 (Total results: ",
  ") [SEP] ",
  " [SEP] ",
  " [SEP] $",
  ".0 [SEP] ",
  " [SEP] Price: $",
  ".0 [SEP] Buy Now",
  " [SEP] Buy Now",
  "buy now",
  *NAMES,
  # As in the tokenizers of Llama 3 and GPT-4, so that a number is copied whole.
  *(f"{number}" for number in range(10, 1000)),
  *(f"b{number}" for number in range(10, 100)),  # ids of products
  *(f"{n}ft" for n in (3, 6, 10, 15)),  # options
  *(f"{n}gb" for n in (16, 32, 64, 128, 256)),
  *(f"{n}ml" for n in (30, 75, 120, 500)),
  *(f"{n}oz" for n in (4, 8, 16, 32)),
  *(
    f'\n{{"name": "{call}'
    for call in (
      'execute_sql", "arguments": {"query": "',
      'commit_final_answer", "arguments": {"answers": ["',
      'commit_final_answer", "arguments": {"answers": []}}\n',
      'search_action", "arguments": {"keywords": "',
      'click_action", "arguments": {"value": "',
      "",
    )
  ),
  '", "arguments": {"',
  '": "',
  '", "',
  '"}}\n',
  '"]}}\n',
)


def get_config():
  """`base`, at the size of a laptop."""
  c = base.get_config()
  c.name = "quickstart"
  c.environments.dbbench.options.update(system_prompt="short", max_rounds=5)
  c.environments.dbbench.mistakes.update(
    no_cast=0.55, no_where=0.45, count_for_sum=0.55
  )
  c.environments.webshop.options.update(
    system_prompt="short",
    difficulty="easy",
    expert_names_options=True,
    catalogue_size=45,
    max_siblings=1,
    max_rounds=10,
    results_per_page=3,
    repeat_instruction=False,
    repeat_item=False,
    list_actions=False,
    show_headings=False,
    show_navigation=False,
    show_subpages=False,
  )
  c.environments.webshop.mistakes.update(
    lazy_search=0.55, skip_last_option=0.45
  )
  c.tokenizer.update(vocab_size=4192, num_texts=2000, whole_lines=16)
  c.tokenizer.whole_tokens = WHOLE_TOKENS
  c.model.update(embedding_scale=7.0, num_kv_heads=4)
  c.warm_start.update(num_demonstrations=10_500, copy_gain=4.0)
  c.train.update(steps=40, row_length=320, micro_batch=7, batch_timeout_s=300.0)
  c.optimizer.update(learning_rate=6e-4, warmup_steps=5, b2=0.95)
  c.loss.update(kl_coefficient=0.0, token_chunk=64)
  c.advantage.keep = "signal"
  c.episode.update(max_turns=10, max_tokens=320, max_answer_tokens=64)
  c.sampling.temperature = 1.0
  c.admission.update(
    groups_per_step=24, max_staleness=1, max_concurrent_groups=20
  )
  c.queue.max_groups = 24
  c.cross_policy.policy_slots = ("fresh", "every 5 lag 5")
  # Few shapes: each is a program to compile before the first answer.
  c.engine.update(
    slots=(96, 32),
    context=320,
    num_slot_sizes=2,
    prefill_chunks=(16, 48),
    steps_per_sync=2,
  )
  c.checkpoint.update(every=5, keep=3)
  c.evaluation.update(
    num_sampled=64, num_untrained=16, concurrency=128, timeout_s=300.0
  )
  return c
