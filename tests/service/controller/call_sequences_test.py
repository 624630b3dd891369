"""Calls of two clients in any order, beside a model of what must happen.

- No answer is a fault of the controller, whatever came before it.
- A numbered turn is played once, and a repeated one gets the same report.
- A place is given back: in the end all can be taken again, and none is more.
- No client ends or plays a session of the other.
"""

import asyncio
import dataclasses
import unittest
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
  RuleBasedStateMachine,
  initialize,
  invariant,
  precondition,
  rule,
  run_state_machine_as_test,
)

from agentrl_jax.service.controller.registry import Timers
from tests.clocks import Clock, until
from tests.env.moody import says
from tests.http_fuzz import Request
from tests.service.controller.fuzzing import DEFAULTS, Rig

CAPACITY = 2  # of each worker
TIMERS = Timers(queue_s=0.2, reconnect_s=0.05, remove_s=300.0)
TASK = "target"
HTTP, GRPC = 1, 2  # ids of the first workers


@dataclasses.dataclass(eq=False)
class Played:
  """One session, as its client knows it."""

  id: int
  client: int
  worker: int
  echo: Any
  words: list[str] = dataclasses.field(default_factory=list)
  last: Any = None  # the report of its last turn
  is_open: bool = True
  is_lost: bool = False  # with its worker

  @property
  def turn(self):
    return len(self.words)


def next_turn(session, words):
  """Returns the request that plays a session's next turn."""
  return Request(
    "POST",
    "/api/interact",
    {"messages": says(words), "turn": session.turn + 1},
    {"session_id": str(session.id)},
  )


class Calls(RuleBasedStateMachine):
  """Two clients, a worker of each kind, and an operator."""

  @initialize()
  def begin(self):
    self.rig = Rig(timers=TIMERS)
    self.sessions: list[Played] = []
    self.workers, self.stale = {}, set()
    self.add_worker(HTTP, grpc=False)
    self.add_worker(GRPC, grpc=True)
    self.last_id = GRPC

  def add_worker(self, id, *, grpc):
    self.workers[id] = self.rig.worker(TASK, grpc=grpc, concurrency=CAPACITY)

  def some(self, data, **wanted):
    """Draws a session with these attributes; None if there is none."""
    fitting = [
      s
      for s in self.sessions
      if all(getattr(s, key) == value for key, value in wanted.items())
    ]
    return data.draw(st.sampled_from(fitting)) if fitting else None

  def settle(self):
    """Waits until the controller lists the sessions that are open."""
    expected = {str(s.id) for s in self.sessions if s.is_open and not s.is_lost}
    lost = {str(s.id) for s in self.sessions if s.is_lost}

    async def is_settled():
      reply = await self.rig.asend(Request("GET", "/api/list_sessions"))
      return set(reply.json) - lost == expected

    self.rig.run(until(is_settled, f"{expected} alone are open", within_s=10))

  @rule(client=st.sampled_from([1, 2]))
  def start(self, client):
    self.settle()
    taken = [s.worker for s in self.sessions if s.is_open and not s.is_lost]
    is_free = any(
      taken.count(id) < CAPACITY for id in self.workers.keys() - self.stale
    )
    session, reply = self.rig.start(TASK, wait_s=1.0 if is_free else 0)
    if not is_free:
      assert reply.status == 400, reply
      assert "no workers available" in reply.json["message"]
      return
    assert session is not None, reply
    worker = self.rig.get("list_sessions")[str(session)]["worker_id"]
    assert worker not in self.stale
    echo = self.workers[worker][0]
    self.sessions.append(Played(session, client, worker, echo))

  def say(self, session, words, turn):
    return self.rig.say(session.id, words, turn=turn)

  def check_refused(self, session, reply):
    allowed = (400, 500) if session.is_lost else (400,)
    assert reply.status in allowed, (session, reply)
    assert len(reply.json["message"]) > 12

  @rule(data=st.data(), words=st.sampled_from(["hm", "so", "end"]))
  def play_the_next_turn(self, data, words):
    session = self.some(data)
    if session is None:
      return
    reply = self.say(session, words, session.turn + 1)
    if not session.is_open or session.is_lost:
      self.check_refused(session, reply)
      return
    self.note(session, words, reply)

  def note(self, session, words, reply):
    assert reply.status == 200, (session, reply)
    session.words.append(words)
    session.last = reply.json
    session.is_open = words != "end"
    assert session.last["finish"] is (words == "end")
    if session.is_open:
      (message,) = session.last["messages"]
      assert message["content"] == f"{session.turn}: {words}"

  @rule(data=st.data())
  def repeat_the_last_turn(self, data):
    session = self.some(data, is_open=True, is_lost=False)
    if session is None or not session.turn:
      return
    reply = self.say(session, "again", session.turn)
    assert reply.json == session.last, (session, reply)

  @rule(data=st.data(), by=st.sampled_from([-3, -1, 2, 3, 10**20]))
  def play_a_turn_out_of_order(self, data, by):
    session = self.some(data)
    if session is None:
      return
    reply = self.say(session, "odd", session.turn + by)
    self.check_refused(session, reply)

  @rule(data=st.data(), words=st.sampled_from(["hm", "end"]))
  def play_a_turn_twice_at_once(self, data, words):
    session = self.some(data, is_open=True, is_lost=False)
    if session is None:
      return
    request = next_turn(session, words)

    async def both():
      return await asyncio.gather(*(self.rig.asend(request) for _ in "ab"))

    replies = self.rig.run(both())
    played = [reply for reply in replies if reply.status == 200]
    assert played, replies
    self.note(session, words, played[0])
    for reply in replies:
      if reply.status == 200:
        assert reply.json == session.last
      else:
        assert reply.status == 400, reply

  @rule(data=st.data())
  def hang_up_in_a_turn(self, data):
    session = self.some(data, is_open=True, is_lost=False)
    if session is None:
      return
    request = next_turn(session, "gone")
    self.rig.run(self.rig.hang_up(request.encode()))
    self.cancel_one(session)
    self.settle()
    session.words[:] = session.echo.plays[session.id]
    assert session.words.count("gone") <= 1

  def cancel_one(self, session):
    reply = self.rig.post("cancel", session=session.id)
    assert reply.status in (200, 400), reply
    session.is_open = False
    return reply

  @rule(data=st.data(), times=st.sampled_from([1, 1, 2, 3]))
  def cancel(self, data, times):
    session = self.some(data)
    if session is None:
      return
    was_open = session.is_open
    for n in range(times):
      reply = self.cancel_one(session)
      assert reply.status == 200 or n or not was_open or session.is_lost, reply

  @rule(data=st.data(), by=st.sampled_from([-1, 1, 2**52, 10**17]))
  def guess_the_session_of_the_other(self, data, by):
    session = self.some(data)
    if session is None:
      return
    guess = max(session.id + by, 0)
    for reply in (
      self.rig.post("cancel", session=guess),
      self.rig.say(guess, "mine"),
      self.rig.say(guess, "mine", turn=session.turn + 1),
    ):
      assert reply.status == 400, reply

  @rule(changes=st.sampled_from([{}, {"concurrency": 0}, {"indices": [5]}]))
  def send_a_heartbeat(self, changes):
    body = {
      "name": TASK,
      "address": self.workers[HTTP][1],
      "concurrency": CAPACITY,
      "indices": list(range(9)),
    }
    reply = self.rig.post("receive_heartbeat", body | changes)
    assert reply.status == (400 if changes else 200), reply

  @rule(data=st.data(), stale=st.booleans())
  def mark_stale(self, data, stale):
    id = data.draw(st.sampled_from(sorted(self.workers)))
    body = {"name": TASK, "worker_id": id, "stale": stale}
    assert self.rig.post("mark_stale", body).status == 200
    (self.stale.add if stale else self.stale.discard)(id)

  @rule(endpoint=st.sampled_from(["sync_all", "clean_worker", "clean_session"]))
  def run_the_timers(self, endpoint):
    assert self.rig.post(endpoint).status == 200

  @rule(data=st.data())
  def send_a_notice_that_is_not_due(self, data):
    session = self.some(data)
    if session is not None:
      assert self.rig.post("cancel_notice", session=session.id).status == 200

  @precondition(lambda self: self.last_id < GRPC + 3)
  @rule()
  def lose_a_worker(self):
    self.settle()
    id = max(self.workers)
    _, _, stack = self.workers.pop(id)
    self.stale.discard(id)
    self.rig.run(stack.aclose())
    for session in self.sessions:
      session.is_lost |= session.worker == id
    self.last_id += 1
    self.add_worker(self.last_id, grpc=True)

  @invariant()
  def nothing_broke(self):
    troubles = self.rig.troubles()
    assert not troubles, troubles

  @invariant()
  def each_turn_was_played_once(self):
    for session in self.sessions:
      plays = session.echo.plays[session.id]
      assert plays == session.words, (session, plays)

  def teardown(self):
    if not hasattr(self, "rig"):
      return
    try:
      self.all_places_are_given_back()
    finally:
      self.rig.close()

  def all_places_are_given_back(self):
    for session in self.sessions:
      if session.is_open and not session.is_lost:
        assert self.cancel_one(session).status == 200
    self.settle()
    for id in self.workers:
      self.mark_stale_one(id)
    echoes = [echo for echo, _, _ in self.workers.values()]
    assert not any(echo.num_open for echo in echoes)
    num_places = CAPACITY * len(self.workers)
    started = [self.rig.start(TASK, wait_s=5.0)[0] for _ in range(num_places)]
    assert None not in started
    assert self.rig.start(TASK)[0] is None
    for session in started:
      assert self.rig.say(session, "end").json["reward"] == 1.0
    self.settle()
    self.rig.run(self.pass_time())
    assert self.rig.get("list_sessions") == {}

  def mark_stale_one(self, id):
    body = {"name": TASK, "worker_id": id, "stale": False}
    self.rig.post("mark_stale", body)

  async def pass_time(self):
    """Lets all be silent for so long that lost workers are forgotten."""
    await Clock().forward(TIMERS.remove_s + 1)
    await self.rig.asend(Request("POST", "/api/clean_worker"))


class CallSequencesTest(unittest.TestCase):
  def test_a_few(self):
    run_state_machine_as_test(
      Calls, settings=settings(DEFAULTS, max_examples=6, stateful_step_count=20)
    )

  @pytest.mark.slow
  def test_many(self):
    run_state_machine_as_test(
      Calls,
      settings=settings(DEFAULTS, max_examples=150, stateful_step_count=50),
    )
