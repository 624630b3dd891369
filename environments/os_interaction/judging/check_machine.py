"""A machine of the judge's own, on which a task's check scripts run.

It is a fresh one. Of the policy's machine it gets what was written there: data,
settings, and programs that the image does not have. Programs and libraries are
the image's; a policy that changed one of them has failed, as nobody can say any
more what a check would find. What would be loaded into every program (settings
of the linker, modules of Python, PAM and logins) stays as it was set up.
"""

import dataclasses
import hashlib
import posixpath
from collections.abc import Mapping

from environments.os_interaction.machines.files import (
  FILE,
  FOLDER,
  LINK,
  LOAD_S,
  Changes,
  File,
  Tree,
  Unreadable,
)
from environments.os_interaction.machines.machine import PATH, Machine
from environments.os_interaction.tasks.outcomes import CommandMade

PROGRAM_FOLDERS = tuple(PATH.split(":"))
_ALIASES = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_LIBRARIES = (
  *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/libx32"),
  *_ALIASES[1:5],
)
_SYSTEM = ("/usr/bin", "/usr/sbin", "/usr/local", "/bin", "/sbin", *_LIBRARIES)
MAX_SYSTEM_CHANGES = 200  # paths; each is compared with the image's
# As it was set up, whatever the policy made of it.
_KEPT = (
  "/etc/alternatives",
  "/etc/ld.so.cache",
  "/etc/ld.so.conf",
  "/etc/ld.so.conf.d",
  "/etc/ld.so.preload",
  "/etc/nsswitch.conf",
  "/etc/pam.d",
  "/etc/profile",
  "/etc/profile.d",
  "/etc/python3",
  "/etc/security",
  "/root/.local/lib",
  "/usr/local/lib",
)
# Python would look for modules beside a script, and in homes.
ENVIRONMENT = ("/usr/bin/env", "PYTHONNOUSERSITE=1", "PYTHONSAFEPATH=1")
NOBODY = "65534"
MAX_LINKS = 8
COMMAND_PLACES = ("/usr/local", "/opt")  # a command may need what it has there


@dataclasses.dataclass(frozen=True)
class Fingerprint:
  """What a machine's own programs and settings were when it was set up."""

  files: Mapping[
    str, str
  ]  # digests by path, of all that differs from the image
  settings: Changes  # of `_KEPT`

  @classmethod
  def of(cls, changes: Changes) -> "Fingerprint":
    """Takes it from what set-up has written."""
    settings = Changes(
      {p: f for p, f in changes.files.items() if _is_in(p, _KEPT)},
      frozenset(p for p in changes.removed if _is_in(p, _KEPT)),
    )
    digests = {path: _digest(file) for path, file in changes.files.items()}
    return cls(digests, settings)


async def load_for_check(
  judge: Machine, before: Fingerprint, after: Changes
) -> bool:
  """Gives the judge's machine what was written; False if a program was.

  Raises `Unreadable` for changes that fit no machine.
  """
  image = await _programs_of(judge, before, after)
  if _is_spoilt(before, after, image):
    return False
  if await _hides_a_program(judge, before, after):
    return False
  carried = {
    path: file
    for path, file in after.files.items()
    if file.kind in (FILE, FOLDER, LINK)
    and not _is_in(path, _KEPT)
    and (path in image or path in before.files or not _is_in(path, _LIBRARIES))
  }
  removed = {p for p in after.removed if not _is_in(p, (*_KEPT, *_LIBRARIES))}
  settings = before.settings
  await judge.load(
    Changes(
      {**carried, **settings.files}, frozenset(removed | settings.removed)
    )
  )
  return True


async def works(
  command: CommandMade, policys: Machine, judge: Machine, *, limit_s: float
) -> bool:
  """Runs a command as nobody on the judge's machine, once per case."""
  files: dict[str, File] = {}
  for place in COMMAND_PLACES:
    files.update(await policys.look(place))
  files = {
    path: file
    for path, file in files.items()
    if file.kind in (FILE, FOLDER, LINK) and not _is_in(path, _KEPT)
  }
  found = await _find(command.name, policys)
  if not found:
    return False
  await judge.load(Changes({**files, **found}))
  for arguments, output in command.cases:
    done = await judge.run(
      [
        *("/usr/bin/setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}"),
        *("--clear-groups", "/usr/bin/env", "-i", f"PATH={PATH}", "HOME=/"),
        *("/bin/bash", "-c", 'cd / && "$@"', "bash", command.name, *arguments),
      ],
      limit_s=limit_s,
    )
    if (
      done.code is None
      or done.stdout.decode(errors="replace").rstrip("\n") != output
    ):
      return False
  return True


async def _find(name: str, policys: Machine) -> Tree:
  """The file of a command and the links that lead to it; {} if none does."""
  for folder in PROGRAM_FOLDERS:
    path, found = f"{folder}/{name}", {}
    for _ in range(MAX_LINKS):
      file = (await policys.look(path)).get(path)
      if file is None or file.kind not in (FILE, LINK):
        break
      found[path] = file
      if file.kind == FILE:
        return found
      target = posixpath.join(posixpath.dirname(path), file.target)
      path = posixpath.normpath(target)
  return {}


async def _programs_of(
  judge: Machine, before: Fingerprint, after: Changes
) -> dict[str, str]:
  """Digests of the image's programs and libraries that were written to."""
  asked = [
    path
    for path in sorted(_asked(before, after))
    if _is_in(path, _SYSTEM) and not _is_plain_folder(path, after)
  ]
  if len(asked) > MAX_SYSTEM_CHANGES:
    raise Unreadable("too much was written among the system's programs")
  image: dict[str, str] = {}
  for path in asked:
    pristine = (await judge.look(path)).get(path)
    if pristine is not None:
      image[path] = _digest(pristine)
  return image


def _asked(before: Fingerprint, after: Changes) -> set[str]:
  """What was written since set-up, or then and is the image's again."""
  now = {*after.files, *after.removed}
  return (now - before.files.keys()) | (before.files.keys() - now)


def _is_plain_folder(path: str, after: Changes) -> bool:
  """Tells folders that are only named for what changed in them.

  /bin and its like are links in the image; a folder there is none of them.
  """
  file = after.files.get(path)
  is_folder = file is not None and file.kind == FOLDER
  return is_folder and path not in after.removed and path not in _ALIASES


def _is_spoilt(
  before: Fingerprint, after: Changes, image: Mapping[str, str]
) -> bool:
  """Tells whether a program that was there is not what it was."""
  for path, digest in {**image, **before.files}.items():
    if not _is_in(path, _SYSTEM):
      continue
    file = after.files.get(path)
    now = image.get(path) if file is None else _digest(file)
    if path in after.removed and file is None or now != digest:
      return True
  return False


async def _hides_a_program(
  judge: Machine, before: Fingerprint, after: Changes
) -> bool:
  """Tells whether something new bears the name of a program that was there."""
  made = {p for p in after.files.keys() - before.files.keys() if _is_program(p)}
  names = {posixpath.basename(path) for path in made}
  if names & {posixpath.basename(p) for p in before.files if _is_program(p)}:
    return True
  script = 'for name; do type -P -- "$name" && exit 1; done; exit 0'
  done = await judge.run(
    ["/bin/bash", "-c", script, "bash", *sorted(names)], limit_s=LOAD_S
  )
  return done.code != 0


def _is_program(path: str) -> bool:
  return posixpath.dirname(path) in PROGRAM_FOLDERS


def _is_in(path: str, folders: tuple[str, ...]) -> bool:
  return any(path == f or path.startswith(f"{f}/") for f in folders)


def _digest(file: File) -> str:
  """What may not change: modes and owners may."""
  if file.kind == FILE:
    return hashlib.sha256(file.content).hexdigest()
  return f"{file.kind} {file.target}"
