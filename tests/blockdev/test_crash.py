"""The table against an engine that is killed at any moment: what the engine holds, a successor's table knows."""

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from farside.blockdev.mapping.activity import Assignment, pack
from farside.blockdev.mapping.table import Table
from farside.blockdev.state import StateFile

EXTENTS = 3
GRANULES = 12


class Crashes(RuleBasedStateMachine):
    """Saves before it tells, frees after it is told, and dies in between as often as hypothesis likes."""

    slabs: Bundle[int] = Bundle("slabs")

    def __init__(self) -> None:
        super().__init__()
        self.fd = os.memfd_create("control")
        os.truncate(self.fd, 1 << 20)
        self.table = Table(StateFile(self.fd), extents=EXTENTS)
        self.engine_slabs: dict[int, int] = {}  # slab -> token
        self.engine_homes: dict[tuple[int, int], int] = {}  # (slab, extent) -> granule
        self.tokens = 0

    def teardown(self) -> None:
        os.close(self.fd)

    @rule(target=slabs, donor=st.integers(0, 2), dies=st.booleans())
    def lease(self, donor: int, dies: bool) -> MultipleResults[int] | int:
        self.tokens += 1
        slab = self.table.add_slab(donor=donor, lease=self.tokens, token=self.tokens, epoch=1, region=0)
        self.table.save()
        if dies:
            self.die()
            return multiple()
        self.engine_slabs[slab.slab] = self.tokens
        return slab.slab

    @rule(granules=st.lists(st.integers(0, GRANULES - 1), unique=True, max_size=5), told=st.integers(0, 5))
    def map_granules(self, granules: list[int], told: int) -> None:
        wanting = [granule for granule in granules if not self.table.mappings(granule)]
        assigned = pack(wanting, self.table.open_views(), granules_per_region=EXTENTS).assigned
        self.table.take(assigned)
        self.table.save()
        for assignment in assigned[:told]:
            self.tell(assignment)
        if told < len(assigned):
            self.die()

    @rule(granule=st.integers(0, GRANULES - 1), dies=st.booleans())
    def free_granule(self, granule: int, dies: bool) -> None:
        mappings = self.table.mappings(granule)
        for slab, extent in mappings.items():
            self.engine_homes.pop((slab, extent))
            if dies:
                self.die()
                return
            self.table.give(granule, slab)

    @rule(slab=consumes(slabs), dies=st.booleans())
    def give_back(self, slab: int, dies: bool) -> None:
        if slab not in self.engine_slabs or self.table.slabs[slab].used:
            return
        del self.engine_slabs[slab]
        if dies:
            self.die()
            return
        self.table.drop_slab(slab)
        self.table.save()

    def tell(self, assignment: Assignment) -> None:
        mapping = (assignment.slab, assignment.extent)
        assert mapping not in self.engine_homes, "an extent was given to two granules"
        self.engine_homes[mapping] = assignment.granule

    def die(self) -> None:
        """A successor's table, and what reconcile.py makes of it."""
        self.table = Table(StateFile(self.fd), extents=EXTENTS)
        for slab in tuple(self.table.slabs.values()):
            if self.engine_slabs.get(slab.slab) != slab.token:
                self.table.drop_slab(slab.slab)
                continue
            for extent, granule in enumerate(slab.granules):
                if granule >= 0 and self.engine_homes.get((slab.slab, extent)) != granule:
                    self.table.give(granule, slab.slab)

    @invariant()
    def table_and_engine_agree(self) -> None:
        known = {
            (slab.slab, extent): granule
            for slab in self.table.slabs.values()
            for extent, granule in enumerate(slab.granules)
            if granule >= 0
        }
        assert known == self.engine_homes
        assert {slab.slab: slab.token for slab in self.table.slabs.values()} == self.engine_slabs


Crashes.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCrashes = Crashes.TestCase
