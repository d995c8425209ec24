"""Options that several commands share, and what turns their text into values."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from farside.errors import ConfigError
from farside.units import parse_bytes

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", metavar="FILE", help="Settings instead of /etc/farside; may be repeated."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting that goes before the files'; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def byte_count(text: str) -> int:
    """Bytes of an option's text such as 512MiB; typer shows the error."""
    try:
        return parse_bytes(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def overrides(settings: Sequence[str] | None) -> Mapping[str, object]:
    """Values by name, of NAME=VALUE texts. A value is TOML where it can be, else plain text.

    Raises:
        ConfigError: One has no equals sign.
    """
    told: dict[str, object] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {text}: is not NAME=VALUE", hint="for example --set size_bytes=2GiB")
        told[name.strip()] = _value(value.strip())
    return told


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text
