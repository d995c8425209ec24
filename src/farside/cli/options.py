"""Options that several commands share, and their conversion to values."""

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from farside.errors import ConfigError
from farside.units import parse_bytes

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Read settings from this file instead of /etc/farside (repeatable)."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting of the files (repeatable)."),
]
ProgramSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PROGRAM.NAME=VALUE",
        help="Set a program of the sandbox otherwise, such as manager.policy=qssf (repeatable).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Aggregators = Annotated[
    int, typer.Option(min=0, help="With --cluster: number of nodes with an Aggregator for shared aggregation.")
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="NODESxGPUS", help="Also run a manager and agents with declared GPUs, such as 4x8."),
]
Executors = Annotated[
    int, typer.Option(min=0, help="With --cluster: number of nodes, the last ones, for co-located jobs, without GPUs.")
]
Later = Annotated[
    int,
    typer.Option(
        min=0,
        help="With --cluster: number of nodes, the last ones, of which nN joins on "
        "`farside admin --socket DIR/sandbox.sock start_agent name=nN`.",
    ),
]
SandboxDisk = Annotated[
    Path | None, typer.Option(help="Backup file, overwritten; default: a file in the state folder.")
]
ClearPages = Annotated[
    bool, typer.Option("--clear-pages", help="Do not encrypt pages at donors, to see what encryption costs.")
]
Listen = Annotated[
    list[str] | None,
    typer.Option(metavar="ENDPOINT", help="Endpoint for clients: unix:PATH or tcp:HOST:PORT (repeatable)."),
]


Command = Callable[..., None]


def made(*, is_last: bool = False, **builders: Callable[..., object]) -> Callable[[Command], Command]:
    """Gives a command, in place of one of its parameters, those of the function that makes its value.

    So several commands have the same options, written once. A parameter that command and builder both have goes to
    both, and reads as the command declares it. ``is_last``: the help shows the builders' options after the command's.

        @app.command()
        @options.made(request=_request)  # def _request(trace: _Trace, policy: _Policy, nodes: _Nodes = None) -> Request
        def run(request: Request, json_out: _Json = None) -> None: ...
    """

    def wrap(command: Command) -> Command:
        own = inspect.signature(command).parameters
        built = {name: inspect.signature(build).parameters for name, build in builders.items()}
        shown: dict[str, inspect.Parameter] = {}
        # False sorts before True, and equal keys keep their order: with is_last only the builders' options move.
        for name in sorted(own, key=lambda name: is_last and name in built):
            shown |= {one: own.get(one, asked) for one, asked in built[name].items()} if name in built else {}
            shown |= {} if name in built or name in shown else {name: own[name]}

        def call(**told: Any) -> None:
            values = {name: build(**{one: told[one] for one in built[name]}) for name, build in builders.items()}
            command(**{name: values[name] if name in values else told[name] for name in own})

        keyword = inspect.Parameter.KEYWORD_ONLY  # typer calls by name; so arguments may follow options with defaults
        parameters = [asked.replace(kind=keyword) for asked in shown.values()]
        # What typer reads of a command: its name, its help, and the parameters with their options.
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = {name: asked.annotation for name, asked in shown.items()}
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    return wrap


def byte_count(text: str) -> int:
    """Bytes of an option's text such as 512MiB; typer shows the error."""
    try:
        return parse_bytes(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Slab = Annotated[int | None, typer.Option(parser=byte_count, metavar="BYTES", help="Size of a slab.")]


def number_within(text: str, low: float, high: float) -> float:
    """The number of an option's text, both bounds included, never nan; typer shows the error."""
    try:
        number = float(text)
    except ValueError as error:
        raise typer.BadParameter(f"'{text}' is no number") from error
    if not low <= number <= high:
        raise typer.BadParameter(f"{text} is not between {low:g} and {high:g}")
    return number


def value_of(option: str, text: str, parse: Callable[[str], float]) -> float:
    """The value of an option's text.

    Raises:
        ConfigError: It is none.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def overrides(settings: Sequence[str] | None) -> Mapping[str, object]:
    """Values by name, from NAME=VALUE texts. A value is TOML if it can be, otherwise plain text.

    Raises:
        ConfigError: One has no equals sign.
    """
    return {name: _value(text) for name, text in texts_by_name(settings).items()}


def texts_by_name(
    settings: Sequence[str] | None, *, form: str = "NAME=VALUE", example: str = "size_bytes=2GiB"
) -> dict[str, str]:
    """Text by name, from NAME=VALUE texts.

    Raises:
        ConfigError: One has no equals sign.
    """
    told: dict[str, str] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {text}: is not {form}", hint=f"for example --set {example}")
        told[name.strip()] = value.strip()
    return told


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    # RecursionError: tomllib calls itself for each bracket within a bracket.
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return text
