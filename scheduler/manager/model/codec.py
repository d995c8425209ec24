"""JSON encoding and decoding of events. PURE.

The name of an event's class is its type. What an older manager wrote is read by a newer one: fields only grow, and
where they were others, log_version2.py knows them. What a newer one wrote, an older one refuses by its version rather
than read it wrong.
"""

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from farside.errors import ConfigError, RemoteProtocolError
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model import log_version2 as version2


class LaterVersion(RemoteProtocolError):
    """A newer manager wrote this log. Starting this one again does not help, so it ends for good."""

    exit_code = ConfigError.exit_code


# Classes whose name is not the one that the log has for them. The log's names stay: older managers read them.
_TAGS: Mapping[type[Any], str] = {
    log.SchedulerTookLead: "BrainTookLead",
    log.JobAllocated: "JobPlaced",
    log.AllocationReleased: "JobUnplaced",
    log.AccessRecorded: "AccessNoted",
}


def tag_of(kind: type[Any]) -> str:
    """The type of an event, as the log, the API and the page name it."""
    return _TAGS.get(kind, kind.__name__)


DECIDED: frozenset[type[Any]] = frozenset(get_args(log.Decided))
TYPES: Mapping[str, type[Any]] = {tag_of(one): one for one in (*get_args(log.Told), *get_args(log.Decided))}
_DECODERS = {name: msgspec.json.Decoder(kind) for name, kind in TYPES.items()}
_ENCODER = msgspec.json.Encoder()


def is_decided(event: log.Event) -> bool:
    """Whether only the leading scheduler process may write it."""
    return type(event) in DECIDED


def encode_event(event: log.Event) -> tuple[str, str]:
    """Type and JSON of an event."""
    return tag_of(type(event)), _ENCODER.encode(event).decode()


def check_version(version: int) -> None:
    """Refuses what a newer manager wrote.

    Raises:
        LaterVersion: It did.
    """
    if version > log.VERSION:
        raise LaterVersion(
            f"the log is of version {version}, and {log.VERSION} is the latest known here", hint="run the newer manager"
        )


def decode_event(kind: str, body: str | bytes, version: int = log.VERSION) -> log.Event:
    """The event of a type and its JSON.

    Raises:
        LaterVersion: A newer manager wrote it.
        RemoteProtocolError: It is of no known type, or not what its type says.
    """
    check_version(version)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise RemoteProtocolError(f"an event of the unknown type '{kind:.60}'", hint="run the manager that wrote it")
    try:
        if version <= version2.VERSION and kind in version2.EVENTS:
            body = _ENCODER.encode(version2.EVENTS[kind](msgspec.json.decode(body)))
        event: log.Event = decoder.decode(body)
    except version2.DAMAGE as error:
        raise RemoteProtocolError(f"{kind}: {error}", hint="the store is damaged; restore a backup") from error
    return event
