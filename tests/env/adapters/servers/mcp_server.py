"""An MCP server that fails on request; it needs no package and starts at once.

python -IS servers/mcp_server.py [KIND]
"""

import json
import os
import pathlib
import sys
import time

KIND = (sys.argv[1:] or ["well"])[0]
FOLDER = pathlib.Path((sys.argv[2:] or ["."])[0])
TEXT = {"type": "string", "description": None}
SCHEMAS = {  # as servers write them
  "add": {
    "properties": {
      "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
      "b": {"$ref": "#/$defs/Number"},
    },
    "$defs": {"Number": {"type": "integer", "title": "Number"}},
    "required": ["a", "b"],
  },
  "say": {"properties": {"text": TEXT}, "required": ["text"]},
  "look": {"properties": {}},
  **{
    name: {"properties": {}}
    for name in ("die", "hang", "slow", "flood", "junk", "refuse", "broken")
  },
}


def tools():
  """Returns the tools in two pages' worth."""
  listed = [
    {"name": name, "inputSchema": {"type": "object", **schema}}
    for name, schema in SCHEMAS.items()
  ]
  return [] if KIND == "none" else listed


def look():
  """Leaves a file; returns those that are there."""
  (FOLDER / "seen").touch()
  return json.dumps(sorted(path.name for path in FOLDER.iterdir()))


def flood():
  """Writes a line without end."""
  while True:
    sys.stdout.write("{" + "x" * (1 << 20))


def junk():
  """Writes lines that are no messages."""
  sys.stdout.write("no JSON\n" * 100_000)
  return "late"


TOOLS = {
  "add": lambda a, b: str((a or 0) + b),
  "say": lambda text: text,
  "look": look,
  "die": lambda: sys.exit("its last words"),
  "hang": lambda: time.sleep(60),
  "flood": flood,
  "junk": junk,
}
# How a tool without a result answers.
BROKEN = {
  "refuse": {"error": {"code": -32602, "message": "not today"}},
  "broken": {"result": {"content": [{"type": "no such type"}]}},
}


def answer(request):
  """Returns the result of a request."""
  method, params = request["method"], request.get("params") or {}
  if method == "initialize":
    return {
      "protocolVersion": params["protocolVersion"],
      "capabilities": {"tools": {}},
      "serverInfo": {"name": "test", "version": "0"},
    }
  if method == "tools/list":
    half = len(SCHEMAS) // 2
    if params.get("cursor"):
      return {"tools": tools()[half:]}
    return {"tools": tools()[:half], "nextCursor": "2"}
  if method == "tools/call":
    text = TOOLS[params["name"]](**params.get("arguments") or {})
    return {"content": [{"type": "text", "text": text}]}
  return {}


def main():
  """Answers requests until the input ends, or for ever."""
  if KIND == "dead":
    sys.exit("cannot begin: no database")
  if KIND == "mute":
    time.sleep(600)
  for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
      continue
    name = (request.get("params") or {}).get("name")
    if name == "slow":
      continue
    reply = BROKEN.get(name) or {"result": answer(request)}
    reply = {"jsonrpc": "2.0", "id": request["id"], **reply}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
  if KIND == "stays":  # as real servers do
    (FOLDER / "pid").write_text(str(os.getpid()))
    time.sleep(60)


main()
