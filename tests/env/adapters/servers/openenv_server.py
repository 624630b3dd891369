"""A server of OpenEnv's protocol that fails on request; it starts at once.

python servers/openenv_server.py PORT [KIND]
"""

import asyncio
import json
import os
import random
import signal
import sys

from aiohttp import web

PORT = int(sys.argv[1])
KIND = (sys.argv[2:] or ["guess"])[0]
MOST_SESSIONS = 2
open_sessions = []

METADATA = {"metadata": {"type": "object"}}
ACTIONS = {  # as pydantic writes them
  "guess": {"number": {"type": "integer", "description": None}},
  "tools": {},
}
SAY = {
  "name": "say",
  "description": "Says it.",
  "input_schema": {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
  },
}


async def schema(request):
  """Serves the schema of actions."""
  if KIND == "older":
    raise web.HTTPNotFound
  fields = ACTIONS.get(KIND, {"text": {"type": "string"}})
  action = {
    "type": "object",
    "title": "Action",
    "additionalProperties": False,
    "properties": {**METADATA, **fields},
    "required": [*fields],
  }
  return web.json_response({"action": action})


class Refused(Exception):
  """An error, with OpenEnv's code."""


class Game:
  """A number to guess, or a text that is a wish."""

  num_steps = 0

  def reset(self, data):
    """Begins with the seed's number."""
    seed = data["seed"] if KIND != "luck" else None
    self.secret = random.Random(seed).randrange(1000)
    self.num_steps = 0
    hint = sum(map(int, str(self.secret)))
    seen = {"hint": hint, "metadata": {"kind": data.get("kind", "")}}
    return {"observation": seen, "reward": None, "done": False}

  def state(self):
    """Returns what a policy does not see."""
    own = {"episode_id": str(random.random()), "step_count": self.num_steps}
    return {**own, "secret": self.secret, "name": "game"}

  async def step(self, data):
    """Plays an action."""
    self.num_steps += 1
    if data.get("type") == "list_tools":
      return {"observation": {"tools": [SAY]}, "reward": None}
    if data.get("type") == "call_tool":
      content = [{"type": "text", "text": data["arguments"]["text"]}]
      seen = {"tool_name": "say", "result": {"content": content}}
      return {"observation": seen, "reward": 0.25, "done": False}
    if "number" in data:
      won = data["number"] == self.secret
      return {"observation": {"won": won}, "reward": float(won), "done": won}
    return await self.wish(data["text"])

  async def wish(self, text):
    """Fails as the text says."""
    match text:
      case "die":
        os._exit(3)
      case "drop":
        raise ConnectionError
      case "garble":
        raise ValueError
      case "hang":
        await asyncio.sleep(60)
      case "invalid":
        raise Refused("VALIDATION_ERROR", "no such wish")
      case "raise":
        raise Refused("EXECUTION_ERROR", "it broke")
    reward = {"nan": float("nan"), "none": None}.get(text, 0.5)
    if KIND == "echo":
      reward = len(text) % 2
    seen = {"text": text * (100_000 if text == "flood" else 1)}
    return {"observation": seen, "reward": reward, "done": text != "on"}


async def session(request):
  """Plays one session."""
  socket = web.WebSocketResponse()
  await socket.prepare(request)
  if len(open_sessions) >= MOST_SESSIONS:
    data = {"code": "CAPACITY_REACHED", "message": "full"}
    await socket.send_json({"type": "error", "data": data})
    return socket
  game = Game()
  open_sessions.append(game)
  try:
    async for message in socket:
      asked = json.loads(message.data)
      try:
        if asked["type"] == "reset":
          await asyncio.sleep(60 * (asked["data"].get("kind") == "late"))
          data = game.reset(asked["data"])
        elif asked["type"] == "state":
          assert "data" not in asked, asked  # which OpenEnv refuses
          data = game.state()
        else:
          data = await game.step(asked["data"])
        kind = "state" if asked["type"] == "state" else "observation"
        await socket.send_json({"type": kind, "data": data})
      except Refused as error:
        data = dict(zip(("code", "message"), error.args, strict=True))
        await socket.send_json({"type": "error", "data": data})
      except ValueError:
        await socket.send_str("{no JSON")
      except ConnectionError:
        request.transport.abort()
  finally:
    open_sessions.remove(game)
  return socket


if KIND == "dead":
  sys.exit("cannot begin: no model")
app = web.Application()
app.router.add_get("/schema", schema)
app.router.add_get("/ws", session)
if KIND == "stubborn":
  signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
web.run_app(
  app,
  host=os.environ.get("HOST", "127.0.0.1"),
  port=PORT,
  print=None,
  handler_cancellation=True,  # a session that hangs ends with its client
)
