"""Old names of settings: accepted with a warning, refused together with the new name.

A setting that is renamed declares its old name, ``was="old_name"``. All that is written or shown has the new one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from farside.config.settings import Declared, Setting, settings_of

Value = TypeVar("Value")


def current_names(known: Mapping[str, Setting]) -> dict[str, str]:
    """The name now, by the name before, of all settings that were renamed."""
    return {setting.was: name for name, setting in known.items() if setting.was}


def with_current_names(config: type[Declared], values: Mapping[str, Value]) -> dict[str, Value]:
    """Values that a program of another version wrote, under the names that its settings have now."""
    names = current_names(settings_of(config))
    return {names.get(name, name): value for name, value in values.items()}


def rename_warnings(setting: Setting, name: str, value: object) -> Iterator[str]:
    """One line for each old name: that of a setting which a file calls ``name``, and those in its [[NAME]] tables."""
    if name == setting.was:
        yield f"is now '{setting.name}'; rename it"
    if setting.row is not None and isinstance(value, list):
        names = current_names(settings_of(setting.row))
        for number, row in enumerate(value, 1):
            yield from (f"table {number}: '{old}' is now '{names[old]}'; rename it" for old in row if old in names)


@dataclass(slots=True)
class Names:
    """The names under which sources (files, the command line) have these settings."""

    known: Mapping[str, Setting]
    _used: dict[str, tuple[str, str]] = field(default_factory=dict)  # current name -> name in the first source, source

    def current(self, name: str, source: str) -> str:
        """The current name of the setting that ``source`` calls ``name``.

        Raises:
            ValueError: This source, or one before it, has the setting under its other name as well.
        """
        now = current_names(self.known).get(name, name)
        other, where = self._used.setdefault(now, (name, source))
        if other != name:
            old = self.known[now].was
            raise ValueError(f"is the same setting as '{other}' in {where}; remove '{old}', its old name")
        return now
