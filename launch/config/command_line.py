"""Parses the flags of every command, and refuses wrong ones in a sentence.

A flag, a config file, an arm or a key that does not exist is named in one
sentence, with similar names and with what is allowed, and the command ends with
status 2. So does a command whose config is refused later, by `ConfigError`:
starting it again would change nothing, and launch/tpu and launch/gke do not.
Other failures end with another status.
"""

import contextlib
import errno
import functools
import inspect
import pathlib
import re
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from agentrl_jax import logs
from agentrl_jax.errors import AgentRLError, ConfigError, suggestion
from agentrl_jax.files import not_written
from configs.base import FLAG, get_config, near_keys, shipped_file, why_unknown
from launch.processes.terminal import print_what_can_be_printed

# The exit status of a wrong command line or config; also in launch/tpu/say.sh.
REFUSED = 2
# No room, no more of it for this user, too large a file, not to be written; and
# a folder where a file is, or the reverse.
_DISK = (
  errno.ENOSPC,
  errno.EDQUOT,
  errno.EFBIG,
  errno.EROFS,
  errno.EISDIR,
  errno.ENOTDIR,
  errno.EEXIST,
)
_MOST = 1e12  # of the number of a flag
_HELP = re.compile(r"-h|-\?|--?help(short|full|xml)?(=.*)?")
_MISSING = re.compile(
  r"flag --(\w+)=None: Flag --\w+ must have a value other than None\."
)
_CONFIG = re.compile(r"--?config=(.*)", re.DOTALL)
# Open sections take keys that they lack; `load_into` refuses others.
_OPEN: Mapping[str, Any] = {"lock_config": False, "accept_new_attributes": True}
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=\[]+)")


@functools.cache
def define_config() -> flags.FlagHolder[ml_collections.ConfigDict]:
  """Returns the flag --config, of every command that asks for it."""
  holder: flags.FlagHolder[ml_collections.ConfigDict] = (
    config_flags.DEFINE_config_file(
      "config",
      None,
      "The experiment: a file whose get_config() returns it, such as "
      "configs/quickstart.py. `configs/` is found from any folder.",
      **_OPEN,
    )
  )
  return holder


@functools.cache
def define_run() -> flags.FlagHolder[str | None]:
  """Returns the flag --run, of every command that asks for it."""
  return flags.DEFINE_string("run", None, "A run's folder.")


def run(
  main: Callable[[], None],
  *,
  verbosity: int = logging.WARNING,
  argv: Sequence[str] | None = None,
) -> None:
  """Parses the flags and runs `main`; its errors are one clear sentence.

  The log is quiet by default: Orbax logs every file that it writes. `argv` are
  the flags after the name of the command; None takes the process's own.
  """

  def answer(argv: Sequence[str]) -> None:
    del argv
    logging.set_verbosity(verbosity)
    print_what_can_be_printed()
    with _errors_in_a_sentence():
      if logs.is_json():
        logging.get_absl_handler().setFormatter(logs.JsonFormatter())
      main()

  for name in ("config", "run"):
    if name in flags.FLAGS:  # --help lists those of the main module alone
      flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
  own = sys.argv if argv is None else [sys.argv[0], *argv]
  app.run(answer, argv=own, flags_parser=parse)


@contextlib.contextmanager
def _errors_in_a_sentence() -> Iterator[None]:
  try:
    yield
  except (AgentRLError, OSError) as error:
    _end_with(_own(error))
  except BaseExceptionGroup as group:  # of tasks that ran at once
    if not (errors := _own_errors(group)):
      raise
    _end_with(errors[0])
  except KeyboardInterrupt:
    sys.exit(128 + signal.SIGINT)  # whoever pressed ctrl-C knows why


def _own_errors(group: BaseExceptionGroup[BaseException]) -> list[AgentRLError]:
  """Returns the errors of a group, or none if any is not this project's."""
  found: list[AgentRLError] = []
  for error in group.exceptions:
    if isinstance(error, BaseExceptionGroup):
      if not (within := _own_errors(error)):
        return []
      found += within
    elif (own := _own_or_none(error)) is not None:
      found.append(own)
    else:
      return []
  return found


def _own(error: AgentRLError | OSError) -> AgentRLError:
  """Returns an error of this project; raises one of the system."""
  own = _own_or_none(error)
  if own is None:
    raise error
  return own


def _own_or_none(error: BaseException) -> AgentRLError | None:
  """Returns this project's error, also for a path that cannot be written."""
  if isinstance(error, AgentRLError):
    return error
  if isinstance(error, OSError) and error.errno in _DISK:
    return not_written(pathlib.Path(str(error.filename or "a file")), error)
  return None


def _end_with(error: AgentRLError) -> NoReturn:
  if isinstance(error, ConfigError):
    sys.stderr.write(f"ConfigError: {error}\n")
    sys.exit(REFUSED)
  sys.exit(f"{type(error).__name__}: {error}")


def parse(argv: Sequence[str]) -> list[str]:
  """Parses flags; ends the process with a sentence if they are wrong."""
  try:
    known = flags.FLAGS.read_flags_from_files(list(argv), force_gnu=False)
    if "config" in flags.FLAGS:
      known = _joined(["--help" if word == "-h" else word for word in known])
      load_into(flags.FLAGS, known[1:])
    left: list[str] = flags.FLAGS(known)
    _refuse_endless(flags.FLAGS)
  except flags.UnrecognizedFlagError as error:
    _refuse(f"{error}{_hint(error.flagname)}")
  except (flags.Error, ConfigError) as error:
    _refuse(_MISSING.sub(_missing, str(error)))
  except SystemExit as end:  # with absl, help is an error
    sys.exit(0 if any(map(_HELP.fullmatch, argv)) else end.code)
  if len(left) > 1:
    _refuse(
      f"{' '.join(left[1:])} was found where flags are expected: write "
      "--name=value, and quote a value with spaces"
    )
  return left


def _missing(match: re.Match[str]) -> str:
  """Returns a sentence for a required flag that is not given."""
  return f"--{match[1]} is missing. {flags.FLAGS[match[1]].help}"


def _hint(name: str) -> str:
  """Returns the keys of the config that an unknown flag may stand for."""
  if "config" not in flags.FLAGS:
    return ""
  config = flags.FLAGS["config"].value or get_config()
  if not why_unknown(name, config):
    return f"; it is a key of the config: write {FLAG}{name}"
  near = near_keys(name, name.rpartition(".")[2], config)
  return f"; keys of the config are set by {FLAG}KEY=VALUE{near}"


def _refuse_endless(given: flags.FlagValues) -> None:
  """Raises `ConfigError` for flags that are NaN, infinite or immense.

  A bound of a flag's own does not exclude NaN.
  """
  for name in given:
    value: Any = given[name].value
    is_number = type(value) in (int, float)
    if is_number and not -_MOST <= value <= _MOST:
      raise ConfigError(
        f"--{name}={value!r:.80} must be a number of at most {_MOST:g}"
      )


class _Loaded(flags.ArgumentParser[Any]):
  """Gives the flag of a config that is loaded already."""

  def __init__(self, config: ml_collections.ConfigDict) -> None:
    self.config = config

  def parse(self, _: str) -> ml_collections.ConfigDict:
    """Returns the config."""
    return self.config.lock()


def load_into(given: flags.FlagValues, arguments: Sequence[str]) -> None:
  """Runs the file of `--config`, whose config the flag will have.

  Raises `ConfigError` for a config file, arm or keys that do not exist. All
  wrong keys are named at once. Other exceptions of a config file pass through.
  """
  named = [m[1] for m in map(_CONFIG.fullmatch, _joined(arguments)) if m]
  if not named:
    return
  config = _run_file(named[-1])
  keys = [m[1] for m in map(_OVERRIDE.match, arguments) if m]
  wrong = [
    sentence
    for key in dict.fromkeys(keys)
    if (sentence := why_unknown(f"--config.{key}", config))
  ]
  if wrong:
    raise ConfigError("; ".join(wrong))
  given["config"].parser = _Loaded(config)


def _joined(arguments: Sequence[str]) -> list[str]:
  """Returns the words with `--config FILE` as `--config=FILE`."""
  words: list[str] = []
  for word in arguments:
    if words and words[-1] in ("--config", "-config"):
      words[-1] += f"={word}"
    else:
      words.append(word)
  return words


def load_config(arguments: Sequence[str]) -> ml_collections.ConfigDict:
  """Returns the config of `--config=FILE` and overrides, as a command would.

  Raises `ConfigError` for what does not exist, or is of the wrong type.
  """
  found = flags.FlagValues()
  words = ["load_config", *_joined(arguments)]
  config_flags.DEFINE_config_file(
    "config", flag_values=found, sys_argv=words, **_OPEN
  )
  load_into(found, arguments)
  try:
    found(words)
  except (flags.Error, TypeError, ValueError) as error:
    raise ConfigError(str(error)) from error
  config: ml_collections.ConfigDict = found["config"].value
  return config


def _run_file(named: str) -> ml_collections.ConfigDict:
  """Loads the config of a file, or of `file:argument`."""
  file, colon, argument = named.partition(":")
  path = shipped_file(file)
  if not path.is_file():
    folder = shipped_file(path.parent)
    others = [str(p) for p in sorted(folder.glob("[!_]*.py"))]
    raise ConfigError(
      f"--config={file} is no file{suggestion(file, others)}; name one whose "
      "get_config() returns the config, such as configs/quickstart.py"
    )
  get_config = runpy.run_path(str(path)).get("get_config")
  if get_config is None:
    raise ConfigError(
      f"--config={file} defines no get_config(): name a file that does, such "
      "as configs/quickstart.py"
    )
  arguments = [argument] if colon else []
  try:
    inspect.signature(get_config).bind(*arguments)
  except TypeError as error:
    what = (
      f"takes nothing after a colon, found {argument!r}"
      if colon
      else "needs something after a colon; its first lines say what"
    )
    raise ConfigError(f"--config={file} {what}") from error
  config: ml_collections.ConfigDict = get_config(*arguments)
  return config


def _refuse(sentence: str) -> NoReturn:
  one_line = " ".join(sentence.split())
  sys.stderr.write(f"{one_line}\nSee --help for the flags.\n")
  sys.exit(REFUSED)
