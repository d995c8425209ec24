"""The four models of [autops Table 4.2], as jobs for shared aggregation. PURE.

Sizes are the table's, whose MB are MiB. Iterations and how busy a job keeps its servers are assumptions: the text has
no table of them. They are chosen so that its other figures are possible at all: two AlexNet jobs of two servers each
need a third Aggregator (Figure 4.9) and two of four servers a fifth (Table 4.4), so one keeps 0.5 to 0.625 of its
servers busy; VGG19's are busy for 16 % (Figure 4.2); four jobs of the others fit on two.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farside.agent.aggregator.layout import CHUNK_BYTES
from farside.scheduler.sharing.aggregation.cost import Cost
from farside.scheduler.sharing.aggregation.placement import Profile
from farside.units import MIB

# A tensor is aggregated in chunks, so one that is 72 % of its model is no single task. Larger pieces than chunks: what
# is placed together need not be placed piece by piece.
PIECE_BYTES = 4 * MIB
GPUS_PER_WORKER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A model: its size, the seconds of an iteration, and the share of its servers' time that aggregation takes."""

    name: str
    model_bytes: int
    iteration_s: float
    busy_share: float

    def profile(self, job: str, servers: int) -> Profile:
        """A job that trains it with ``servers`` servers of one core each."""
        pieces = -(-self.model_bytes // PIECE_BYTES)
        cpu_s = self.busy_share * servers * self.iteration_s
        cost = Cost(byte_s=cpu_s / (pieces * PIECE_BYTES))  # of the two figures the text has none
        piece_s = cost.work_s(PIECE_BYTES // CHUNK_BYTES, PIECE_BYTES)
        return Profile(job=job, iteration_s=self.iteration_s, tasks_s=(piece_s,) * pieces, servers=servers)


def _model(name: str, size_mib: int, iteration_s: float, busy_share: float) -> TrainedModel:
    return TrainedModel(name=name, model_bytes=size_mib * MIB, iteration_s=iteration_s, busy_share=busy_share)


MODELS: tuple[TrainedModel, ...] = (
    _model("AlexNet", 236, 0.125, 0.55),
    _model("VGG19", 548, 0.5, 0.16),
    _model("AWD-LM", 396, 0.4, 0.2),
    _model("BERT", 1278, 0.8, 0.2),
)
BY_NAME: Mapping[str, TrainedModel] = MappingProxyType({model.name: model for model in MODELS})


def drawn_profile(job: str, gpus: int, rng: random.Random) -> Profile:
    """A job that trains one of the models on ``gpus`` GPUs, with a server for each worker or for each two.

    A worker has four GPUs, as in the text's testbed; its settings are 1 server for 2 workers, 2 for 2, and 4 for 4.
    """
    workers = -(-gpus // GPUS_PER_WORKER)
    servers = rng.choice((workers, max(1, workers // 2)))
    return rng.choice(MODELS).profile(job, servers)
