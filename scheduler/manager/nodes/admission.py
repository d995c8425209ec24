"""Admission of nodes: which names may join, which wait for an operator, and what operators are shown of them. PURE."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec import Struct

from farside.agent import messages as m
from farside.scheduler.manager.model.record import Admission
from farside.scheduler.manager.model.state import LiveState

# Whoever has a certificate of the CA may try names; the oldest go.
WAITING_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A node that nobody knows, as it described itself when it tried to join last."""

    address: str
    gpus: int
    memory_bytes: int
    at_s: float


class WaitingNodes:
    """Nodes that wait for `farside node accept`, by name. Kept by this process only: they try again all the time."""

    def __init__(self) -> None:
        self._nodes: dict[str, Waiting] = {}

    def note(self, hello: m.Hello, address: str, now_s: float) -> None:
        """Keeps what a node said; one that tries again is the newest."""
        self._nodes.pop(hello.node, None)
        self._nodes[hello.node] = Waiting(
            address=address, gpus=len(hello.gpus), memory_bytes=hello.memory_bytes, at_s=now_s
        )
        if len(self._nodes) > WAITING_MAX:
            del self._nodes[next(iter(self._nodes))]

    def strangers(self, state: LiveState) -> Mapping[str, Waiting]:
        """Those that are still not known."""
        return {name: one for name, one in self._nodes.items() if _is_unknown(state, name)}


class AdmissionRow(Struct, frozen=True, kw_only=True):
    """A node's name, and whether it may join.

    Attributes:
        state: ``waits`` for an operator, ``invited``, ``expired`` (its invitation), ``revoked``, ``accepted`` (it may
            join, and never did), or ``joined``.
        until_s: Until when its invitation counts; None: it has none.
        excess: What it says that it has, beyond what anybody vouched for; empty: nothing.
    """

    name: str
    state: str
    by: str
    at_s: float
    until_s: float | None
    gpus: int | None
    memory_bytes: int | None
    excess: str


def is_stranger(state: LiveState, node: str, *, is_named: bool) -> bool:
    """Whether a node must wait for an operator.

    ``is_named``: its proof is for this name. A node's token, an invitation, or a command of root on the manager's
    machine names the node, so an operator has named it. A certificate is the word of the CA, which may have other uses;
    an operator's token may speak for any name, also one that nobody meant.
    """
    return not is_named and _is_unknown(state, node)


def refusal_of_revoked(node: str) -> str:
    """The answer to a revoked node, which says how it may come again."""
    return f"{node:.40} was revoked: `farside node accept` or `invite` lets it in again"


def admission_rows(state: LiveState, waiting: Mapping[str, Waiting], now_s: float) -> Iterator[AdmissionRow]:
    """All names that are known, or wait, in the order of the alphabet."""
    for name in sorted({*state.nodes, *state.admissions, *waiting}):
        node, told = state.nodes.get(name), state.admissions.get(name, Admission())
        stranger = waiting.get(name)
        if stranger is not None:
            yield AdmissionRow(
                name=name, state="waits", by=stranger.address, at_s=stranger.at_s, until_s=None, gpus=stranger.gpus,
                memory_bytes=stranger.memory_bytes, excess="",
            )  # fmt: skip
            continue
        yield AdmissionRow(
            name=name,
            state=_state_of(told, now_s, has_joined=node is not None),
            by=told.by,
            at_s=told.at_s if node is None or told.at_s else node.joined_s,
            until_s=told.expires_s if told.invitation else None,
            gpus=told.gpus if node is None else len(node.gpus),
            memory_bytes=told.memory_bytes if node is None else node.memory_bytes,
            excess="" if node is None else node.excess,
        )


def _is_unknown(state: LiveState, node: str) -> bool:
    admission = state.admissions.get(node)
    return node not in state.nodes and not (admission is not None and (admission.is_accepted or admission.key))


def _state_of(told: Admission, now_s: float, *, has_joined: bool) -> str:
    if told.is_revoked:
        return "revoked"
    if told.invitation:
        return "invited" if told.expires_s > now_s else "expired"
    if has_joined:
        return "joined"
    return "accepted" if told.is_accepted or told.key else "named"
