"""A module that needs what nobody installed."""

import nowhere_to_be_found

f = nowhere_to_be_found.f
