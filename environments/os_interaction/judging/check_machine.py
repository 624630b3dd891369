"""Prepares the fresh machine on which check scripts and commands are run.

The machine gets the policy's data, settings, and programs that the image does
not have. Programs and libraries stay the image's; a policy that changed one of
them has failed, because a check may depend on it. Files that are loaded into
every program (settings of the linker, modules of Python, PAM and logins) stay
as they were set up.
"""

import dataclasses
import hashlib
import itertools
import posixpath
from collections.abc import Iterable, Mapping

from environments.os_interaction.machines.files import (
  FILE,
  FOLDER,
  LINK,
  LOAD_TIMEOUT_S,
  Changes,
  File,
  Tree,
  Unreadable,
  is_in,
)
from environments.os_interaction.machines.machine import PATH, Machine
from environments.os_interaction.tasks.outcomes import CommandMade

PROGRAM_FOLDERS = tuple(PATH.split(":"))
_ALIASES = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_LIBRARIES = (
  "/usr/lib",
  "/usr/lib32",
  "/usr/lib64",
  "/usr/libexec",
  "/usr/libx32",
  *_ALIASES[1:5],
)
_SYSTEM = ("/usr/bin", "/usr/sbin", "/usr/local", "/bin", "/sbin", *_LIBRARIES)
MAX_SYSTEM_CHANGES = 200  # paths; each is compared with the image's
# Stay as they were set up, whatever the policy wrote there.
_FIXED = (
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
# Runs a check. Python would look for modules beside the script and in homes.
CHECK_COMMAND = ("/usr/bin/env", "PYTHONNOUSERSITE=1", "PYTHONSAFEPATH=1")
NOBODY = "65534"
MAX_LINKS = 8
COMMAND_FOLDERS = ("/usr/local", "/opt")  # copied, as a command may use them
CALLED_FROM = ("/", "/usr/share", "/tmp")  # in turn


@dataclasses.dataclass(frozen=True)
class Fingerprint:
  """Difference of a machine to its image when it was set up."""

  files: Mapping[str, str]  # digests by path
  settings: Changes  # of `_FIXED`

  @classmethod
  def of(cls, changes: Changes) -> "Fingerprint":
    """Summarizes the changes of the set-up."""
    settings = Changes(
      {p: f for p, f in changes.files.items() if is_in(p, _FIXED)},
      frozenset(p for p in changes.removed if is_in(p, _FIXED)),
    )
    digests = {path: digest_of(file) for path, file in changes.files.items()}
    return cls(digests, settings)


async def load_changes(
  fresh: Machine, before: Fingerprint, after: Changes
) -> bool:
  """Copies the policy's changes; False if the policy changed a program.

  Raises `Unreadable` for changes that fit no machine.
  """
  image = await _image_digests(fresh, before, after)
  if _is_program_changed(before, after, image):
    return False
  if await _is_program_hidden(fresh, before, after):
    return False
  copied = {
    path: file
    for path, file in after.files.items()
    if _is_copied(path, file)
    and (path in image or path in before.files or not is_in(path, _LIBRARIES))
  }
  removed = {p for p in after.removed if not is_in(p, (*_FIXED, *_LIBRARIES))}
  settings = before.settings
  await fresh.apply_changes(
    Changes({**copied, **settings.files}, frozenset(removed | settings.removed))
  )
  return True


async def command_works(
  command: CommandMade, machine: Machine, fresh: Machine, *, limit_s: float
) -> bool:
  """Copies a command to the fresh machine and runs its cases as nobody."""
  files: dict[str, File] = {}
  for folder in COMMAND_FOLDERS:
    files.update(await machine.read_tree(folder))
  files = {path: file for path, file in files.items() if _is_copied(path, file)}
  program = await _find_program(command.name, machine)
  if not program:
    return False
  await fresh.apply_changes(Changes({**files, **program}))
  folders = itertools.cycle(CALLED_FROM)
  for folder, (arguments, output) in zip(folders, command.cases, strict=False):
    done = await fresh.run(
      [
        "/usr/bin/setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "/usr/bin/env",
        "-i",
        f"PATH={PATH}",
        "HOME=/",
        "/bin/bash",
        "-c",
        'cd "$0" && "$@"',
        folder,
        command.name,
        *arguments,
      ],
      limit_s=limit_s,
    )
    if (
      done.code is None
      or done.stdout.decode(errors="replace").rstrip("\n") != output
    ):
      return False
  return True


async def _find_program(name: str, machine: Machine) -> Tree:
  """Reads a command's file and the links that lead to it; {} if absent."""
  for folder in PROGRAM_FOLDERS:
    path, program = f"{folder}/{name}", {}
    for _ in range(MAX_LINKS):
      file = (await machine.read_tree(path)).get(path)
      if file is None or file.kind not in (FILE, LINK):
        break
      program[path] = file
      if file.kind == FILE:
        return program
      target = posixpath.join(posixpath.dirname(path), file.target)
      path = posixpath.normpath(target)
  return {}


async def _image_digests(
  fresh: Machine, before: Fingerprint, after: Changes
) -> dict[str, str]:
  """Digests the image's versions of the programs and libraries that changed.

  A path has changed if it differs from the image either now or at set-up only.
  """
  now = {*after.files, *after.removed}
  changed = [
    path
    for path in sorted(now ^ before.files.keys())
    if is_in(path, _SYSTEM) and not _is_plain_folder(path, after)
  ]
  if len(changed) > MAX_SYSTEM_CHANGES:
    raise Unreadable("too much was written among the system's programs")
  image: dict[str, str] = {}
  for path in changed:
    original = (await fresh.read_tree(path)).get(path)
    if original is not None:
      image[path] = digest_of(original)
  return image


def _is_plain_folder(path: str, after: Changes) -> bool:
  """Tells whether a folder is listed only because its content changed.

  /bin and the other `_ALIASES` are links in the image, so a folder there is a
  change by itself.
  """
  file = after.files.get(path)
  is_folder = file is not None and file.kind == FOLDER
  return is_folder and path not in after.removed and path not in _ALIASES


def _is_program_changed(
  before: Fingerprint, after: Changes, image: Mapping[str, str]
) -> bool:
  """Tells whether a program from the set-up was changed or removed."""
  for path, digest in {**image, **before.files}.items():
    if not is_in(path, _SYSTEM):
      continue
    file = after.files.get(path)
    now = image.get(path) if file is None else digest_of(file)
    if path in after.removed and file is None or now != digest:
      return True
  return False


async def _is_program_hidden(
  fresh: Machine, before: Fingerprint, after: Changes
) -> bool:
  """Tells whether a new file has the name of a program from the set-up."""
  names = _program_names(after.files.keys() - before.files.keys())
  if names & _program_names(before.files):
    return True
  script = 'for name; do type -P -- "$name" && exit 1; done; exit 0'
  done = await fresh.run(
    ["/bin/bash", "-c", script, "bash", *sorted(names)], limit_s=LOAD_TIMEOUT_S
  )
  return done.code != 0


def _program_names(paths: Iterable[str]) -> set[str]:
  return {
    posixpath.basename(path)
    for path in paths
    if posixpath.dirname(path) in PROGRAM_FOLDERS
  }


def _is_copied(path: str, file: File) -> bool:
  return file.kind in (FILE, FOLDER, LINK) and not is_in(path, _FIXED)


def digest_of(file: File) -> str:
  """Summarizes content and link target; tasks may change modes and owners."""
  if file.kind == FILE:
    return hashlib.sha256(file.content).hexdigest()
  return f"{file.kind} {file.target}"
