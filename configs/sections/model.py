"""Tokenizer and architecture of a model that starts from nothing; its adapters.

And how it is computed, whatever it starts from.
"""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `tokenizer`, `chat`, `model`, `lora` and `compute`."""
  return create(
    tokenizer=create(  # of a run without a pretrained model
      num_texts=2000,  # demonstrations that it is trained on
      whole_tokens=(),  # texts that are one token each
      whole_lines=0,  # number of frequent lines that become one token each
    ),
    chat=create(  # the pretrained model's chat template and its variables
      # "": the model's own; a Jinja file's path; or, over the model's markers,
      # hermes or llama (tools and calls as text), plain (tasks without tools)
      template="",
      date="2024-07-26",  # "today" of the template, the same on every day
      thinking=True,  # False: the generation prompt closes the thought
      # With a grammar of calls: their JSON has no white space but one space
      # after commas and colons, as templates write it. Fewer tokens a call.
      compact_calls=False,
    ),
    model=create(
      width=192,  # channels of the residual stream
      num_layers=3,
      num_heads=4,  # of queries
      num_kv_heads=2,  # of keys and values
      head_dim=32,  # channels of a head
      mlp_width=384,  # hidden channels of the MLP, or of each expert
      num_experts=0,  # of each layer, in place of its MLP
      experts_per_token=0,  # that the router chooses for each token
      normed_experts=False,  # the weights of these add up to 1
      # Largest input of an expert's gate and up, with biases on all experts, as
      # in gpt-oss; 0: neither.
      swiglu_limit=0.0,
      # GLM-4.5's router: scores are sigmoids, and a bias without gradient is
      # added to them where they choose.
      sigmoid_router=False,
      expert_groups=1,  # of consecutive experts, for this router
      groups_per_token=1,  # the best ones, whose experts a token may choose
      expert_scale=1.0,  # factor of the chosen experts' weights
      shared_experts=0,  # that all tokens have beside those they choose
      dense_layers=0,  # the first ones, which have one MLP and no experts
      dense_mlp_width=0,  # hidden channels of their MLP
      rope_theta=1e4,  # base of the rotary wavelengths
      # How wavelengths are scaled for a longer context: default (they are not),
      # linear, llama3, yarn.
      rope_type="default",
      rope_factor=1.0,  # by which they are scaled
      # Rotations within the original context below which a wavelength is scaled
      # whole, and above which it is not scaled.
      rope_low_frequency=1.0,
      rope_high_frequency=4.0,  # see rope_low_frequency; of yarn often 32
      rope_original_context=0,  # tokens of the context before scaling
      rope_truncate=True,  # yarn's range of channels ends at whole ones
      # Factor of rotated queries and keys with yarn, whose paper takes
      # 0.1 ln(rope_factor) + 1.
      rope_attention_factor=1.0,
      partial_rotary_factor=1.0,  # share of a head's channels that rotate
      window=0,  # tokens that a local layer attends to; 0: all layers to all
      window_period=0,  # every n-th layer attends to all; 0: none does
      # Base of the rotary wavelengths of local layers, which are then not
      # scaled; 0: as other layers.
      local_rope_theta=0.0,
      # Scores are divided by its root; 0 stands for head_dim.
      query_pre_attn_scalar=0,
      sinks=False,  # gpt-oss's scores without values, one for each head
      norm_epsilon=1e-6,  # added to the mean square of RMSNorm
      zero_centered_norm=False,  # Gemma's scales, 1 + the parameter
      activation="silu",  # of the MLP's gate; or gelu_tanh
      tied_embedding=True,  # the output head is the embedding
      embedding_scale=1.0,  # factor of the embeddings
      qk_norm=True,  # RMSNorm of queries and keys
      joint_qk_norm=False,  # OLMo 2's, over all heads at once
      qkv_bias=False,  # biases of queries, keys and values
      o_bias=False,  # bias of attention's output
      pre_norm=True,  # norms before attention and before the MLP
      # GLM-4's and OLMo 2's norms after attention and after the MLP.
      sandwich_norm=False,
      value_head=False,  # a critic, for advantage estimators of the gae family
    ),
    lora=create(
      alpha=16.0,  # numerator of the adapters' scale, alpha / rank
      targets=("q", "k", "v", "o", "gate", "up", "down"),  # adapted matrices
    ),
    compute=create(  # the choices are described in model/compute.py
      attention="auto",  # of updates; or xla, splash (TPU), cudnn (GPU)
      # Tokens of a block of a training row; 0 lets the kernel choose.
      attention_block=0,
      cache_attention="auto",  # of decode steps; or xla, ragged (TPU)
      # Options of XLA: auto, by the generation of TPU; none, the compiler's
      # defaults. More may follow: auto,xla_tpu_scoped_vmem_limit_kib=65536.
      compiler_options="auto",
    ),
  )
