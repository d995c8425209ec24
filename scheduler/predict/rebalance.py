"""Rebalancing service: lends idle nodes to virtual clusters that lack nodes. PURE.

[helios §3.1.3, Implication 3]: which virtual cluster could have lent to which.

How it works
  Static virtual clusters leave nodes idle in one while jobs wait in another. Nobody may be preempted here, so a node is
  lent only while it is idle and not likely to be missed: its owner keeps as many GPUs as it needed at most in the last
  ``look_back_s``, and ``spare_nodes`` more. That forecast is the model; it needs no fit. As soon as an owner has jobs
  that wait, idle nodes of its own that others have go back to it first.
"""

from collections import deque
from dataclasses import dataclass

from farside.scheduler.predict.service import Advice, Fact, ModelRecord, MoveNode, Sampled, UpdateRule, VcSample

NAME = "rebalance"
NEVER = UpdateRule(every_s=float("inf"), growth=float("inf"), drift=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceParams:
    """How much an owner keeps.

    Attributes:
        look_back_s: An owner keeps what it needed at most in this time.
        spare_nodes: And so many nodes more.
        node_gpus: GPUs of a node.
    """

    look_back_s: float = 24 * 3600.0
    spare_nodes: int = 1
    node_gpus: int = 8


class RebalanceService:
    """Advises which nodes to move at each sample. ``owners``: the virtual cluster that owns each node."""

    name = NAME
    rule = NEVER
    learnable = 0
    drift = 0.0

    def __init__(self, params: RebalanceParams, owners: dict[str, str]) -> None:
        self.params = params
        self.owners = dict(owners)
        self.lent: dict[str, str] = {}  # the borrower, by node that is not with its owner
        self._needed: dict[str, deque[tuple[float, int]]] = {}

    def fit(self, now_s: float) -> ModelRecord | None:
        """None: this service has no model, only the greatest need of the last day."""
        return None

    def observe(self, fact: Fact) -> tuple[Advice, ...]:
        """Moves of idle nodes, first back to owners, then to the virtual clusters that lack most."""
        if not isinstance(fact, Sampled):
            return ()
        for sample in fact.vcs:
            self._note(fact.at_s, sample)
        return (*self._give_back(fact.vcs), *self._lend(fact.vcs))

    def _note(self, at_s: float, sample: VcSample) -> None:
        needed = self._needed.setdefault(sample.vc, deque())
        # A sample that is later than now is from before the clock jumped back.
        while needed and (needed[0][0] < at_s - self.params.look_back_s or needed[0][0] > at_s):
            needed.popleft()
        needed.append((at_s, sample.running_gpus + sample.waiting_gpus))

    def _give_back(self, samples: tuple[VcSample, ...]) -> list[MoveNode]:
        waiting = {sample.vc for sample in samples if sample.waiting_gpus}
        moves = []
        for sample in samples:
            for node in sample.idle_nodes:
                owner = self.owners[node]
                # Back where the owner waits, and as soon as the borrower does not need it any more.
                if owner != sample.vc and (owner in waiting or not sample.waiting_gpus):
                    moves.append(MoveNode(node=node, from_vc=sample.vc, to_vc=owner, reason="goes back to its owner"))
                    del self.lent[node]
        return moves

    def _lend(self, samples: tuple[VcSample, ...]) -> list[MoveNode]:
        lacking = {sample.vc: sample.waiting_gpus for sample in samples if sample.waiting_gpus}
        moves: list[MoveNode] = []
        for sample in sorted(samples, key=lambda sample: -len(sample.idle_nodes)):
            if sample.vc in lacking:
                continue
            own = [node for node in sample.idle_nodes if self.owners[node] == sample.vc]
            for node in own[: self._lendable(sample)]:
                to_vc = max(lacking, key=lambda vc: lacking[vc], default="")
                if not lacking or lacking[to_vc] <= 0:
                    return moves
                lacking[to_vc] -= self.params.node_gpus
                self.lent[node] = to_vc
                reason = f"idle; {to_vc} has {lacking[to_vc] + self.params.node_gpus} GPUs' worth of jobs waiting"
                moves.append(MoveNode(node=node, from_vc=sample.vc, to_vc=to_vc, reason=reason))
        return moves

    def _lendable(self, sample: VcSample) -> int:
        """Nodes that its owner will hardly miss."""
        most = max(needed for _, needed in self._needed[sample.vc])
        spare = (sample.gpus - most) // self.params.node_gpus - self.params.spare_nodes
        return max(0, spare)
