"""Peers that speak other engines' protocols, on a real engine.

They answer as vLLM's and SGLang's servers do, field for field as far as a run
looks, and each can lack what such an engine may lack. What is sampled comes
from the tiny policy, so answers can be compared.
"""

import asyncio
import contextlib
import dataclasses

import jax
import numpy as np
from aiohttp import web

from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import EngineGenerator, LocalDriver
from agentrl_jax.rollout.external.response import label_of
from agentrl_jax.rollout.openai.models import ModelNames
from agentrl_jax.rollout.openai.routes import OpenAIApi, OpenAIModel
from agentrl_jax.rollout.openai.schema import ServingLimits
from agentrl_jax.rollout.remote.wire import ServedPolicySlot
from agentrl_jax.rollout.server.app import RolloutApi
from tests.rollout import small
from tests.rollout.serving import Served
from tests.settings import COMPUTE, HTTP

MODEL = "tiny"


class Peer:
  """A server of one version; `lacks` names what it does not do."""

  def __init__(self, *lacks, token="", port=0, engine=None):
    self.lacks, self.token, self._port = set(lacks), token, port
    self._engine = engine or small.engine_of((10,))
    self._stack = contextlib.AsyncExitStack()
    self.label = "default"
    self.num_asked = 0
    self.swaps_at = 0  # the request that finds weights swapped
    self.bodies, self.folders, self.calls = [], [], []
    self.hold = asyncio.Event()
    self.hold.set()

  async def __aenter__(self):
    self.driver = LocalDriver(self._engine)
    self._stack.callback(self.driver.close)
    await self._stack.enter_async_context(self.driver.serving())
    self._generator = EngineGenerator(self.driver, deadline_s=600.0)
    application = web.Application(middlewares=[self._guarded])
    for path, handler in self.routes().items():
      application.router.add_route("*", path, handler)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    self._stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", self._port).start()
    self.address = f"127.0.0.1:{runner.addresses[0][1]}"
    return self

  async def __aexit__(self, *error):
    await self._stack.aclose()

  def publish(self, step, publication):
    """Serves other weights from the next step on, under their label."""
    self.driver.engine.versions.publish(small.params(step), step)
    self.label = label_of(ServedPolicySlot(step, publication))

  async def sample(self, prompt, spec):
    """Samples; returns ids, log-probabilities, and if a stop token came."""
    self.num_asked += 1
    if self.num_asked == self.swaps_at:
      self.publish(11, 6)
    answer = await self._generator.generate(prompt, self._understood(spec))
    await self.hold.wait()
    tokens = answer.sampled.tolist()
    logprobs = np.minimum(answer.raw_logprob, 0).tolist()
    stopped = len(tokens) < spec.max_tokens
    if "stop_token" in self.lacks and stopped:
      tokens, logprobs = tokens[:-1], logprobs[:-1]
    return *self._given(tokens, logprobs), stopped

  def _understood(self, spec):
    if "seeds" in self.lacks:
      spec = dataclasses.replace(spec, seed=self.num_asked)
    if "stop_ignored" in self.lacks:
      spec = dataclasses.replace(spec, stop_tokens=())
    return spec

  def _given(self, tokens, logprobs):
    if "max_tokens" in self.lacks:
      tokens, logprobs = tokens + tokens[:1], logprobs + logprobs[:1]
    if "vocabulary" in self.lacks:
      tokens[0] = small.VOCAB
    if "logits" in self.lacks:
      logprobs = [x + 20 for x in logprobs]
    if "a_logprob" in self.lacks:
      logprobs[-1] = None
    return tokens, logprobs

  @web.middleware
  async def _guarded(self, request, handler):
    if request.method == "POST":
      self.calls.append(request.path_qs)
      if "connection" in self.lacks:  # as of a process that was killed
        request.transport.abort()
    wanted = f"Bearer {self.token}"
    if self.token and request.headers.get("Authorization") != wanted:
      return web.json_response({"error": "Unauthorized"}, status=401)
    return await handler(request)

  async def health(self, request):
    return web.Response()

  async def models(self, request):
    card = {"id": MODEL, "object": "model", "max_model_len": small.CONTEXT}
    return web.json_response({"object": "list", "data": [card]})

  async def version(self, request):
    return web.json_response({"weight_version": self.label})

  async def relabel(self, request):
    self.label = (await request.json())["new_version"]
    return web.json_response({"success": True})

  def load(self, folder):
    """Reads a Hugging Face folder as such engines do: the whole of it."""
    if "load" in self.lacks:
      raise web.HTTPInternalServerError(text="out of memory")
    self.folders.append(folder)
    policy = Policy(read_model(folder)[0], COMPUTE)
    mesh = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1])
    params = jax.jit(policy.unstacked)(read_params(folder, policy, mesh))
    params = jax.device_put(params, jax.devices()[0])
    self.driver.engine.versions.publish(params, 0)


class VllmPeer(Peer):
  """Server like `vllm serve` with VLLM_SERVER_DEV_MODE=1."""

  def routes(self):
    routes = {
      "/health": self.health,
      "/v1/models": self.models,
      "/v1/completions": self.completions,
      "/weight_info": self.version,
      "/pause": self.done,
      "/resume": self.done,
      "/reset_prefix_cache": self.health,
      "/update_weight_version": self.relabel,
      "/collective_rpc": self.rpc,
    }
    if "versions" in self.lacks:
      routes.pop("/weight_info")
    return routes

  async def done(self, request):
    return web.json_response({"status": "done"})

  async def rpc(self, request):
    body = await request.json()
    assert body["method"] == "reload_weights", body
    self.load(body["kwargs"]["weights_path"])
    return web.json_response({"results": [None]})

  async def completions(self, request):
    body = await request.json()
    self.bodies.append(body)
    if "seed" in body and "takes_seed" in self.lacks:
      return web.json_response(
        {"error": {"message": "JAX does not support per-request seed."}},
        status=400,
      )
    tokens, logprobs, stopped = await self.sample(
      body["prompt"],
      SamplingParams(
        temperature=body["temperature"],
        max_tokens=body["max_tokens"],
        stop_tokens=tuple(body["stop_token_ids"]),
        seed=body.get("seed", self.num_asked),
      ),
    )
    choice = {
      "index": 0,
      "text": "",
      "finish_reason": "stop" if stopped else "length",
      "logprobs": {"token_logprobs": logprobs, "tokens": [""] * len(tokens)},
      "token_ids": tokens,
      "prompt_token_ids": body["prompt"],
    }
    if "token_ids" in self.lacks:
      choice |= {"token_ids": None, "prompt_token_ids": None}
    if "prompt" in self.lacks:
      choice["prompt_token_ids"] = body["prompt"][1:]
    if "logprobs" in self.lacks:
      choice["logprobs"] = None
    usage = {"prompt_tokens": len(body["prompt"])}
    return web.json_response({"choices": [choice], "usage": usage})


class SglangPeer(Peer):
  """Server like `sglang.launch_server`; SGLang-JAX lacks "versions"."""

  def routes(self):
    routes = {
      "/health": self.health,
      "/v1/models": self.models,
      "/generate": self.generate,
      "/get_model_info": self.model_info,
      "/get_weight_version": self.version,
      "/update_weights_from_disk": self.update,
    }
    if "versions" in self.lacks:
      routes.pop("/get_weight_version")
    return routes

  async def model_info(self, request):
    version = {} if "versions" in self.lacks else {"weight_version": self.label}
    return web.json_response({"model_path": MODEL} | version)

  async def update(self, request):
    body = await request.json()
    self.load(body["model_path"])
    self.label = body["weight_version"]
    return web.json_response({"success": True, "message": ""})

  async def generate(self, request):
    body = await request.json()
    self.bodies.append(body)
    asked = body["sampling_params"]
    began_as = self.label
    tokens, logprobs, stopped = await self.sample(
      body["input_ids"],
      SamplingParams(
        temperature=asked["temperature"],
        max_tokens=asked["max_new_tokens"],
        stop_tokens=tuple(asked["stop_token_ids"]),
        seed=asked.get("sampling_seed", self.num_asked),
      ),
    )
    pairs = zip(logprobs, tokens, strict=True)
    about = {
      "prompt_tokens": len(body["input_ids"]),
      "finish_reason": {"type": "stop" if stopped else "length"},
      "output_token_logprobs": [[x, token, None] for x, token in pairs],
    }
    if "logprobs" in self.lacks:
      about.pop("output_token_logprobs")
    if body["logprob_start_len"] == 0:
      about["input_token_logprobs"] = [
        [None, token, None] for token in body["input_ids"]
      ]
    if "versions" not in self.lacks:
      about["weight_version"] = self.label
    if "spans" not in self.lacks and "versions" not in self.lacks:
      about["weight_versions"] = self._spans(began_as, len(tokens))
    output = {"text": "", "output_ids": tokens, "meta_info": about}
    return web.json_response(output)

  def _spans(self, began_as, number):
    """Returns one span, or two halves if the weights were swapped meanwhile."""
    if began_as == self.label:
      return [{"version": self.label, "start": 0, "end": number}]
    half = number // 2
    return [
      {"version": began_as, "start": 0, "end": half},
      {"version": self.label, "start": half, "end": number},
    ]


class OwnServer(Served):
  """A rollout server of this framework with OpenAI's endpoints."""

  serving = True  # whether its policy slots have weights

  def status(self):
    status = super().status()
    if self.serving:
      return status
    return dataclasses.replace(
      status, policy_slots=(None,) * len(status.policy_slots)
    )

  def api_of(self, generator):
    return RolloutApi(
      generator,
      self.status,
      context=small.CONTEXT,
      openai=self._openai,
      http=HTTP,
    )

  def _openai(self, answering):
    return OpenAIApi(
      EngineGenerator(self.driver, deadline_s=600.0),
      answering,
      [
        OpenAIModel(
          ModelNames(MODEL, lambda: self.status().policy_slots),
          ServingLimits(context=small.CONTEXT),
          lambda: None,
        )
      ],
    )
