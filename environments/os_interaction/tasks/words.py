"""Word lists of generated tasks: files, people, products, cities, settings."""


def _split(words: str) -> tuple[str, ...]:
  return tuple(words.split())


FOLDERS = _split(
  """
  archive backups billing catalog data drafts exports inbox invoices library
  notes orders papers photos projects records reports samples scans staging
  surveys workspace
  """
)
STEMS = _split(
  """
  alpha april budget cedar client delta draft forecast harbor index july
  ledger maple memo minutes north outline plan river sketch summary table
  update winter
  """
)
EXTENSIONS = ("txt", "log", "csv", "md", "dat", "conf", "json", "bak")
PEOPLE = _split(
  """
  agnes boris carla dmitri elena felix greta hugo irene jonas karin lukas mona
  nadia oscar petra rosa stefan tara viktor
  """
)
GROUPS = _split(
  """
  analysts artists builders editors guests keepers pilots planners testers
  writers
  """
)
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
EVENTS = (
  "cache cleared",
  "connection closed",
  "connection opened",
  "disk almost full",
  "file uploaded",
  "job finished",
  "job started",
  "login failed",
  "login succeeded",
  "request timed out",
  "session expired",
  "token renewed",
)
PRODUCTS = _split(
  """
  anchor basket candle drum easel flute globe hammer kettle lantern mirror
  needle pillow ribbon saddle teapot
  """
)
CITIES = _split(
  """
  Bergen Cork Delft Evora Graz Izmir Lviv Malmo Nantes Porto Riga Turin
  """
)
KEYS = _split(
  """
  backlog cache_size color host interval language mode port region retries
  theme timeout
  """
)
