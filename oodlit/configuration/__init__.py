"""Configurations: from plain values to objects and back.

Classes and functions are written as `class_path` and `init_args`; public ones of oodlit by their name alone. `plan`
checks all names and converts all values before `make` calls the first constructor; `spell_out` writes a plan in full.
"""

from oodlit.configuration.making import make, spell_out
from oodlit.configuration.planning import CLASS_KEYS, Planned, plan

__all__ = ["CLASS_KEYS", "Planned", "make", "plan", "spell_out"]
