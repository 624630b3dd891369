"""Envelopes of AgentRL's gRPC stream, with AgentRL's field numbers.

A worker dials its controller, and both send envelopes over the one stream: the
worker its heartbeats and notices, the controller its requests; a response has
the request's id. This module only encodes; it does not interpret requests.

The messages are declared here, in a pool of their own, so that AgentRL's
generated code can be loaded as well, under any protobuf from 5 on. Names do not
travel: the method's path, the numbers and the types are AgentRL's.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.bearer_token import HEADER, bearer
from agentrl_jax.errors import ConfigError

try:
  import grpc.aio  # type: ignore[import-untyped]
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
  from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
except ImportError as missing:
  raise ConfigError(
    f"gRPC needs the package {missing.name!r}, which is not installed: "
    "pip install 'agentrl_jax[grpc]', or use an http:// address"
  ) from missing

SERVICE = "agentbench.Controller"
METHOD = "WorkerStream"
MAX_ENVELOPE_BYTES = 100 << 20
SENT, RECEIVED = (
  "grpc.max_send_message_length",
  "grpc.max_receive_message_length",
)
SIZES = ((SENT, MAX_ENVELOPE_BYTES), (RECEIVED, MAX_ENVELOPE_BYTES))

# Exceptions of writing to a broken stream and of reading from it.
BROKEN = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError)

HEARTBEAT, REQUEST, RESPONSE = 0, 1, 2  # types of envelopes
INVALID = -1  # the type that an envelope is given whose bytes cannot be read

# message -> field -> (number, type, oneof group); [type] is a repeated field.
_MESSAGES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
  "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
  "TaskIndex": {
    "int_value": (1, "int64", "value"),
    "string_value": (2, "string", "value"),
  },
  "Heartbeat": {
    "id": (1, "string"),
    "name": (2, "string"),
    "concurrency": (3, "uint32"),
    "indices": (4, ["TaskIndex"]),
    "plays_once": (1001, "bool"),  # ours; AgentRL's code skips it
  },
  "CancelNotice": {"session_id": (1, "int64")},
  "WorkerRequest": {
    "method": (1, "string"),
    "endpoint": (2, "string"),
    "json": (3, "bytes"),
  },
  "WorkerResponse": {
    "code": (1, "int32"),
    "message": (2, "string"),
    "json": (3, "bytes"),
  },
  "Envelope": {
    "id": (1, "string"),
    "type": (2, "int32"),  # AgentRL's enum, with the same encoding
    "timestamp": (3, "Timestamp"),
    "heartbeat": (101, "Heartbeat", "body"),
    "cancel_notice": (111, "CancelNotice", "body"),
    "response": (121, "WorkerResponse", "body"),
    "request": (211, "WorkerRequest", "body"),
  },
}


def _declare() -> Any:
  """Makes the class of each message."""
  file = descriptor_pb2.FileDescriptorProto(
    name="agentrl_jax/worker_stream.proto", package="agentrl_jax"
  )
  for name, fields in _MESSAGES.items():
    message = file.message_type.add(name=name)
    for field, (number, kind, *group) in fields.items():
      _add_field(message, field, number, kind, group)
  pool = descriptor_pool.DescriptorPool()
  pool.AddSerializedFile(file.SerializeToString())
  return {
    name: message_factory.GetMessageClass(
      pool.FindMessageTypeByName(f"agentrl_jax.{name}")
    )
    for name in _MESSAGES
  }


def _add_field(
  message: Any, name: str, number: int, kind: Any, group: Sequence[str]
) -> None:
  Field = descriptor_pb2.FieldDescriptorProto
  field = message.field.add(
    name=name, number=number, label=Field.LABEL_OPTIONAL
  )
  if isinstance(kind, list):
    field.label, kind = Field.LABEL_REPEATED, kind[0]
  if kind in _MESSAGES:
    field.type, field.type_name = Field.TYPE_MESSAGE, f".agentrl_jax.{kind}"
  else:
    field.type = getattr(Field, f"TYPE_{kind.upper()}")
  if group:
    if not message.oneof_decl:
      message.oneof_decl.add(name=group[0])
    field.oneof_index = 0


_CLASSES = _declare()
Envelope: Any = _CLASSES["Envelope"]


def heartbeat(worker: str, announcement: Mapping[str, Any]) -> Any:
  """Makes a heartbeat; `worker` is the worker's id for life.

  It also announces that a request which arrives twice is played once.
  """
  envelope = _envelope(HEARTBEAT)
  body = envelope.heartbeat
  body.id, body.name = worker, announcement["name"]
  body.concurrency = announcement["concurrency"]
  body.plays_once = True
  for index in announcement["indices"]:
    if isinstance(index, int):
      body.indices.add(int_value=index)
    else:
      body.indices.add(string_value=index)
  return envelope


def announcement_of(envelope: Any) -> dict[str, Any]:
  """Reads a heartbeat; its address names the worker by its id."""
  body = envelope.heartbeat
  return {
    "name": body.name,
    "address": address_of(envelope),
    "concurrency": body.concurrency,
    "indices": [_index(each) for each in body.indices],
  }


def address_of(envelope: Any) -> str:
  """Returns the address of a heartbeat's worker, which is its id."""
  return f"grpc://{envelope.heartbeat.id}"


def _index(body: Any) -> int | str | None:
  kind = body.WhichOneof("value")
  return None if kind is None else getattr(body, kind)


def cancel_notice(session: int) -> Any:
  """Makes a notice that a session, cancelled with notice, is free."""
  envelope = _envelope(REQUEST)
  envelope.cancel_notice.session_id = session
  return envelope


def request(method: str, endpoint: str, body: Any) -> Any:
  """Makes a call of the worker's API; None is no body."""
  envelope = _envelope(REQUEST)
  envelope.request.method, envelope.request.endpoint = method, endpoint
  if body is not None:
    envelope.request.json = json.dumps(body).encode()
  return envelope


def response(to: str, code: int, body: Any, *, message: str = "") -> Any:
  """Makes the response to the request with the id `to`; `code` is HTTP's."""
  envelope = _envelope(RESPONSE, to)
  envelope.response.code, envelope.response.message = code, message
  if body is not None:
    envelope.response.json = json.dumps(body).encode()
  return envelope


def _envelope(type: int, id: str | None = None) -> Any:
  envelope = Envelope(id=id or str(uuid.uuid4()), type=type)
  now_ns = time.time_ns()
  envelope.timestamp.seconds, envelope.timestamp.nanos = divmod(now_ns, 10**9)
  return envelope


def dial(channel: Any, token: str = "") -> Any:
  """Opens the stream from the worker's side, with its token if it has one."""
  return channel.stream_stream(
    f"/{SERVICE}/{METHOD}",
    request_serializer=Envelope.SerializeToString,
    response_deserializer=Envelope.FromString,
  )(metadata=[(k.lower(), v) for k, v in bearer(token).items()])


def authorization(context: Any) -> str:
  """Returns the header with the token of the worker that opened a stream."""
  metadata = dict(context.invocation_metadata() or ())
  return str(metadata.get(HEADER.lower(), ""))


async def refuse(context: Any, reason: str) -> None:
  """Ends a stream without a token from the controller's side: raises."""
  await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)


async def end(context: Any, reason: str) -> None:
  """Ends a stream with an invalid envelope: raises."""
  await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)


def channel(address: str) -> Any:
  """Opens an unencrypted channel to `host:port`."""
  return grpc.aio.insecure_channel(address, options=SIZES)


def why(error: BaseException) -> str:
  """Describes the error of a broken stream in one line."""
  if isinstance(error, grpc.aio.AioRpcError):
    return f"{error.code().name}: {error.details()}"
  return repr(error)


def _read(content: bytes) -> Any:
  """Reads an envelope; gRPC would log a traceback for bytes that are none."""
  try:
    return Envelope.FromString(content)
  except DecodeError:
    return Envelope(type=INVALID)


def server(serve_stream: Callable[..., Any], options: Sequence[Any]) -> Any:
  """Makes a server that answers each stream with `serve_stream`.

  `options` are gRPC's, in place of `SIZES` where they name the same.
  """
  grpc_server = grpc.aio.server(
    options=[*(dict(SIZES) | dict(options)).items()]
  )
  handler = grpc.stream_stream_rpc_method_handler(
    serve_stream,
    request_deserializer=_read,
    response_serializer=Envelope.SerializeToString,
  )
  service = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
  grpc_server.add_generic_rpc_handlers((service,))
  return grpc_server
