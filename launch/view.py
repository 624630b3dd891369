"""Shows a run in the browser: its trajectories turn by turn, and its curves.

  python -m launch.view runs/quickstart
  python -m launch.view runs/quickstart --output=quickstart.html
  python -m launch.view runs/quickstart --terminal
  python -m launch.view runs/quickstart --trajectory=rl_greedy.0.0

The first serves a page on this machine alone, which follows a run that is going
on; from another machine use `ssh -L 8100:127.0.0.1:8100 MACHINE`. The second
writes the same page as one file with all that the run has kept, to be opened
without a server. The last two stay in the terminal: numbers and the list of
trajectories, and one trajectory as text.
"""

import argparse
import asyncio
import contextlib
import pathlib
import signal
import sys
from collections.abc import Sequence

from aiohttp import web

from agentrl_jax.errors import AgentRLError
from agentrl_jax.files import writing
from agentrl_jax.http_requests import listen
from launch.config.command_line import REFUSED
from launch.processes.terminal import plain_console, print_what_can_be_printed
from launch.viewing.server import Viewer, application, write_file
from launch.viewing.terminal import follow, transcript

CONSOLE = plain_console(soft_wrap=True)
_HOST = "127.0.0.1"


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line, and serves or writes the page."""
  parser = argparse.ArgumentParser(
    prog="python -m launch.view", description=__doc__.partition("\n")[0]
  )
  parser.add_argument("run", help="the folder of a run")
  parser.add_argument("--port", type=int, default=8100, help="0: any free one")
  instead = parser.add_mutually_exclusive_group()
  instead.add_argument("--output", help="write one file, and serve nothing")
  instead.add_argument(
    "--terminal", action="store_true", help="follow the run here, until Ctrl-C"
  )
  instead.add_argument(
    "--trajectory", metavar="ID", help="print one, as listed by --terminal"
  )
  given = parser.parse_args(arguments)
  print_what_can_be_printed()
  try:
    viewer = Viewer(pathlib.Path(given.run))
    if given.output:
      with writing(pathlib.Path(given.output)):
        size = write_file(viewer, pathlib.Path(given.output))
      CONSOLE.print(f"{given.output}: {size / 1e6:.1f} MB")
    elif given.trajectory:
      CONSOLE.print(transcript(viewer, given.trajectory))
    elif given.terminal:
      with contextlib.suppress(KeyboardInterrupt):
        follow(viewer, CONSOLE)
    else:
      asyncio.run(_serve(viewer, given.port))
  except AgentRLError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.exit(REFUSED)


async def _serve(viewer: Viewer, port: int) -> None:
  """Serves until SIGTERM or Ctrl-C."""
  stopping = asyncio.Event()
  loop = asyncio.get_running_loop()
  for sign in (signal.SIGTERM, signal.SIGINT):
    loop.add_signal_handler(sign, stopping.set)
  runner = web.AppRunner(application(viewer, _HOST), access_log=None)
  await runner.setup()
  try:
    port = await listen(runner, _HOST, port, flags="--port or --output")
    CONSOLE.print(f"http://{_HOST}:{port} shows the run; Ctrl-C ends this")
    # A long run has much to read, which then is read before somebody asks.
    await asyncio.to_thread(viewer.listing)
    await stopping.wait()
  finally:
    await runner.cleanup()


if __name__ == "__main__":
  main()
