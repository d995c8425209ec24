"""Node services: what each can do, and all services of a node together as the session carries them.

How it works
============
A service says one JSON value, its whole state. HELLO and each REPORT carry it. The manager keeps it, and reads it only
where it knows the service. An order is one JSON value as well, again a whole state: it may come twice, and an order
older than the last is ignored. Nothing between the service and the code that knows it has to know which service it is.

A new service is one class in a file of its own here, one line in `agent/main.py`, and one entry in the manager's table
(`scheduler/manager/nodes/services.py`), if the manager is to read it. What a job's process needs to reach its service
(the path of a socket, a token) goes into its environment by `variables`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec import Raw

from farside.agent import messages as m
from farside.log import get_log

_log = get_log("agent.service")


class NodeService(Protocol):
    """One service of this node. Nothing here waits: what takes time, it does in a task of its own.

    Attributes:
        name: What manager and agents call it, such as ``donor``.
        version: Version of its facts and orders, from 1. It understands orders of all versions up to this.
    """

    name: str
    version: int

    def facts(self) -> bytes:
        """Its whole state as JSON, as it last knew it."""
        ...

    def obey(self, order: Raw) -> None:
        """Does what the manager wants from now on.

        Raises:
            msgspec.MsgspecError: This is no order of this service.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Figures for Prometheus, by name."""
        ...

    def drained(self) -> bool:
        """Whether it has nothing of others, so that the node may go off as far as it is concerned."""
        ...

    def unfit(self) -> str:
        """Reason why this node shall take nothing new; empty: nothing speaks against it."""
        return ""

    def variables(self, start: m.Start) -> Mapping[str, str]:
        """What a task that is to be started gets into its environment: the service's socket, and its token."""
        return {}

    async def close(self) -> None:
        """Ends with the agent; a service that lives on does nothing."""
        return


class NodeServices:
    """All services of one node.

    Attributes:
        faults: By service, how often what it said, or was told, could not be used.
    """

    def __init__(self, services: Iterable[NodeService]) -> None:
        self.faults: Counter[str] = Counter()
        self._services = {service.name: service for service in services}
        self._problems: dict[str, str] = {}
        self._newest: dict[str, tuple[int, int]] = {}  # generation and epoch of the last order

    @property
    def can(self) -> tuple[str, ...]:
        """What HELLO says of them."""
        return tuple(
            m.can_service(one.name, version) for one in self._services.values() for version in range(1, one.version + 1)
        )

    def facts(self) -> dict[str, Raw]:
        """What each says; one that says nothing usable, or more than there is room for, is left out."""
        found: dict[str, Raw] = {}
        room_bytes = m.SERVICES_BYTES_MAX
        for name, service in self._services.items():
            said = service.facts()
            problem = _problem(said, room_bytes)
            if problem:
                self._fault(name, problem)
                continue
            self._problems.pop(name, None)
            room_bytes -= len(said)
            found[name] = Raw(said)
        return found

    def holding(self) -> tuple[str, ...]:
        """Those that have something of others."""
        return tuple(name for name, service in self._services.items() if not service.drained())

    def unfit(self) -> str:
        """Why this node shall take nothing new, as one of them says; empty: none does."""
        return next(filter(None, (service.unfit() for service in self._services.values())), "")

    def obey(self, order: m.Service) -> None:
        """Gives an order to its service."""
        service, age = self._services.get(order.name), (order.generation, order.epoch)
        if service is None:
            self._fault(order.name, "this node has no such service")
            return
        # An equal age is taken: orders are whole states, and one that comes again is harmless.
        if age < self._newest.get(order.name, age):
            _log.debug("an old order is ignored", service=order.name, epoch=order.epoch)
            return
        try:
            service.obey(order.raw)
        except msgspec.MsgspecError as error:
            self._fault(order.name, f"this is no order of it: {error}")
            return
        # Only after it was obeyed: an order that nobody understands does not make older ones old.
        self._newest[order.name] = age

    def led_by(self, generation: int) -> None:
        """Forgets orders of later generations: of a manager that was none, now that the true one has proved itself."""
        self._newest = {name: age for name, age in self._newest.items() if age[0] <= generation}

    def metrics(self) -> dict[str, Mapping[str, float]]:
        """The figures of each."""
        return {name: service.metrics() for name, service in self._services.items()}

    def variables(self, start: m.Start) -> dict[str, str]:
        """What all of them give to a task that is to be started."""
        return {name: value for service in self._services.values() for name, value in service.variables(start).items()}

    async def close(self) -> None:
        """Ends all, the last first."""
        for service in reversed(self._services.values()):
            await service.close()

    def _fault(self, name: str, problem: str) -> None:
        self.faults[name] += 1
        if self._problems.get(name) != problem:  # once, and not with each report
            self._problems[name] = problem
            _log.warning("a service is not heard", service=name, why=problem)


def _problem(said: bytes, room_bytes: int) -> str:
    """Why this can't be carried; empty: it can."""
    if len(said) > m.SERVICE_BYTES_MAX:
        return f"it says {len(said)} bytes, and {m.SERVICE_BYTES_MAX} are the most"
    if len(said) > room_bytes:
        return f"all services together say more than {m.SERVICES_BYTES_MAX} bytes"
    try:
        # Decoded as Raw it is checked to be JSON, and nothing is built from it.
        msgspec.json.decode(said, type=Raw)
    except msgspec.DecodeError as error:
        return f"it does not say JSON: {error}"
    return ""
