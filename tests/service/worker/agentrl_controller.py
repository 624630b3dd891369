"""AgentRL's controller for tests: real gRPC, AgentRL's own messages."""

import asyncio
import json
import uuid

import grpc.aio
from agentrl.worker.pb import controller_v1_pb2, controller_v1_pb2_grpc

Envelope = controller_v1_pb2.WorkerStreamEnvelope


class AgentRLController(controller_v1_pb2_grpc.ControllerServicer):
  """Takes one worker's stream after the other."""

  def __init__(self):
    self.heartbeats = asyncio.Queue()
    self.notices = asyncio.Queue()
    self.acknowledges = True
    self.loses_responses = False  # as if the stream had broken before
    self.responses = {}  # id -> future
    self.num_streams = self.num_lost = 0
    self.stray_ids = []  # of responses that nobody waits for
    self._stream = None
    self._write_lock = asyncio.Lock()  # a stream takes one envelope at a time
    self._hang_up = None

  async def WorkerStream(self, request_iterator, context):
    self.num_streams += 1
    self._hang_up = asyncio.Event()
    listening = asyncio.create_task(self._listen(request_iterator, context))
    hanging_up = asyncio.create_task(self._hang_up.wait())
    await asyncio.wait(
      [listening, hanging_up], return_when=asyncio.FIRST_COMPLETED
    )
    self._stream = None
    for task in (listening, hanging_up):
      task.cancel()
    await asyncio.gather(listening, hanging_up, return_exceptions=True)
    async with self._write_lock:
      pass  # what is being written goes out

  async def _listen(self, request_iterator, context):
    async for envelope in request_iterator:
      if envelope.type == Envelope.HEARTBEAT:
        self._stream = context
        await self.heartbeats.put(envelope.receive_heartbeat_request)
      elif envelope.type == Envelope.REQUEST:
        await self._acknowledge(envelope, context)
      elif self.loses_responses:
        self.num_lost += 1
      elif envelope.id in self.responses and self._stream is not None:
        future = self.responses.pop(envelope.id)
        future.set_result(envelope.worker_response)
      else:
        self.stray_ids.append(envelope.id)

  async def _acknowledge(self, envelope, context):
    await self.notices.put(envelope.session_cancel_notice.session_id)
    if self.acknowledges:
      response = Envelope(id=envelope.id, type=Envelope.RESPONSE)
      response.timestamp.GetCurrentTime()
      response.worker_response.code = 200
      response.worker_response.message = ""
      await self._write(context, response)

  async def _write(self, stream, envelope):
    """Writes to the end: a stream cannot be closed in the middle of a write."""

    async def write():
      async with self._write_lock:
        await stream.write(envelope)

    await asyncio.shield(write())

  def hang_up(self):
    """Ends the current stream."""
    self._hang_up.set()

  async def send(self, method, endpoint, body=None):
    """Sends a request; returns a future of its response."""
    request = Envelope(id=str(uuid.uuid4()), type=Envelope.REQUEST)
    request.timestamp.GetCurrentTime()
    request.worker_request.method = method
    request.worker_request.endpoint = endpoint
    if body is not None:
      request.worker_request.json = json.dumps(body).encode()
    future = asyncio.get_running_loop().create_future()
    self.responses[request.id] = future
    await self._write(self._stream, request)
    return future

  async def ask(self, method, endpoint, body=None):
    """Sends a request; returns the response's code and JSON, if any."""
    return self.read(await (await self.send(method, endpoint, body)))

  @staticmethod
  def read(response):
    return response.code, json.loads(response.json or b"null")


class ServedController:
  """A controller on a port that it keeps over restarts."""

  def __init__(self):
    self.port = 0

  async def start(self):
    self.controller = AgentRLController()
    self._server = grpc.aio.server()
    controller_v1_pb2_grpc.add_ControllerServicer_to_server(
      self.controller, self._server
    )
    self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
    await self._server.start()
    return self.controller

  async def stop(self):
    await self._server.stop(grace=None)
