"""A job that trains through Aggregators whose every chunk is the engine's `chunk.c`; all around it is played here.

Members, lanes, Aggregators' buffers, the mover and the planner are objects in memory, and a random choice says which
of them does something next. So frames are late, lanes end with frames in them, plans come in any order to different
nodes, and processes die, at any moment. What is checked at each step is said at each `assert`.

Contents are tuples that name what they were made of: parameters of version v name those of v - 1 and the gradients.
"""

import random
import subprocess
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cffi import FFI

# Of this tree: a built package has no sources.
SOURCE = Path(__file__).parents[2] / "kmod_shim/engine/chunk.c"
HEADER = SOURCE.with_suffix(".h").read_text()

ffi = FFI()
ffi.cdef(HEADER.partition("/* cffi: begin */")[2].partition("/* cffi: end */")[0])
PUSH, HAVE, ASK, SEED, LANE_END, UPDATED, PLAN, COPY, NEXT_ANEW = range(9)
GONE, EMPTY, SERVING, LEAVING, LEFT, COMING = range(6)

Frame = tuple[Any, ...]
START = ("p0",)


def load(folder: Path) -> Any:
    """chunk.c, compiled by itself."""
    library = folder / "chunk.so"
    command = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(SOURCE)]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=60)
    return ffi.dlopen(str(library))


def ranks(mask: int) -> list[int]:
    """The ranks in a mask."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


@dataclass(frozen=True, slots=True)
class Place:
    """A plan's word on one chunk."""

    owner: int
    epoch: int
    next: int | None = None
    next_epoch: int = 0


@dataclass(slots=True)
class Held:
    """One chunk at one member."""

    version: int | None = None
    contents: Any = None
    keeps: bool = False
    is_anew: bool = False
    gradients: dict[int, Any] = field(default_factory=dict)
    is_full: bool = False
    owner: int = 0
    epoch: int = 0
    has_asked: bool = False
    owes: int | None = None


class Lane:
    """A connection of one member's life and one Aggregator's: two streams each way, which end together."""

    def __init__(self, member: "Member", aggregator: "Aggregator") -> None:
        self.member, self.aggregator = member, aggregator
        self.up: tuple[deque[Frame], deque[Frame]] = (deque(), deque())
        self.down: tuple[deque[Frame], deque[Frame]] = (deque(), deque())
        self.is_cut = self.is_left = False
        self.blocked: dict[int, int] = {}

    def cut(self, rng: random.Random) -> None:
        """Some of what is on its way, the last part of each stream, is lost."""
        self.is_cut = True
        for stream in (*self.up, *self.down):
            for _ in range(rng.randint(0, len(stream))):
                stream.pop()


class Member:
    """One rank's process."""

    def __init__(self, world: "World", rank: int, life: int) -> None:
        self.world, self.rank, self.life = world, rank, life
        self.chunks = [Held() for _ in range(world.chunk_count)]
        self.lanes: dict[int, Lane] = {}
        for index, held in enumerate(self.chunks):
            place = world.plans[-1][index]
            held.owner, held.epoch = place.owner, place.epoch
            if life == 0 and (world.sum_only or rank == 0):
                held.version, held.contents, held.keeps = 0, START, not world.sum_only
        self.is_joining = self.chunks[0].version is None
        self.plan = len(world.plans) - 1

    def send(self, index: int, stream: int, frame: Frame) -> None:
        """To the chunk's owner, if there is a lane."""
        lane = self.lanes.get(self.chunks[index].owner)
        if lane is not None and not lane.is_cut:
            lane.up[stream].append((*frame, index, self.chunks[index].epoch))
            if frame[0] == PUSH and self.world.rng.random() < 0.05:
                lane.up[stream].append(lane.up[stream][-1])

    def introduce(self, index: int) -> None:
        """On a new lane, under a new epoch: what is held, then the push that may have been lost."""
        held = self.chunks[index]
        self.send(index, 0, (HAVE, held.version, held.keeps, held.is_anew))
        if held.has_asked and held.version is not None:
            self.send(index, 0, (ASK, held.version - 1))
        if held.is_full and held.version is not None:
            self.push(index, held.version + 1)

    def push(self, index: int, iteration: int) -> None:
        """The gradient of an iteration, if it is still there."""
        if iteration in self.chunks[index].gradients:
            self.send(index, 1, (PUSH, iteration, self.chunks[index].gradients[iteration]))

    def leave(self, number: int) -> None:
        """Nothing of this Aggregator's lands any more; what was sent to it may arrive."""
        lane = self.lanes.pop(number, None)
        if lane is not None:
            lane.is_cut = lane.is_left = True
            for stream in lane.down:
                stream.clear()

    def follow(self, index: int, owner: int, epoch: int, *, sender: int | None = None) -> None:
        """A newer word on who owns the chunk, from a plan or from ``sender``."""
        held = self.chunks[index]
        if epoch > held.epoch:
            # A former owner that says so itself updates nothing any more; another one may know of nothing yet.
            if held.owner not in (owner, sender) and (held.is_full or held.version is None):
                self.leave(held.owner)
            held.owner, held.epoch = owner, epoch
            self.introduce(index)

    def receive(self, sender: int, frame: Frame) -> None:
        """One frame of an Aggregator."""
        kind, *rest, index, epoch = frame
        held = self.chunks[index]
        if kind == "moved":
            self.follow(index, rest[0], rest[1], sender=sender)
            return
        if epoch != held.epoch:
            # A newer one belongs to a plan that is on its way; the owner asks again when HAVE comes.
            assert kind != "result" or epoch < held.epoch or epoch > held.epoch
            return
        if kind == "result":
            self._result(index, sender, *rest)
        elif kind == "given":
            self._given(index, *rest)
        elif kind == "want have":
            self.introduce(index)
        elif kind == "want push":
            self.push(index, rest[0])
        elif kind == "want seed":
            held.owes = rest[0]
            self._pay(index)

    def _pay(self, index: int) -> None:
        """A seed that was asked for, as soon as it is here."""
        held = self.chunks[index]
        if held.owes == held.version and (held.keeps or self.world.sum_only):
            self.send(index, 0, (SEED, held.version, held.contents))
            held.owes = None

    def _result(self, index: int, sender: int, version: int, contents: Any, moved_to: tuple[int, int] | None) -> None:
        held = self.chunks[index]
        if held.version is None or version == held.version + 1:
            assert not held.has_asked
            self.world.check_result(index, version, contents)
            held.is_anew = held.version is None and self.life > 0
            held.version, held.contents = version, contents
            held.keeps = not self.world.sum_only and index % self.world.members_count == self.rank
            held.is_full = False
            self._pay(index)
        else:
            # Members are at most one version apart, and who is ahead is asked for its next push by what it has.
            assert version <= held.version, "a result is newer than the next one"
        if moved_to is not None:
            self.follow(index, *moved_to, sender=sender)
        if held.is_full and version == held.version:
            self.push(index, version + 1)
        if held.has_asked:
            self.send(index, 0, (ASK, version - 1))
        self._join()

    def _given(self, index: int, version: int, contents: Any) -> None:
        held = self.chunks[index]
        if held.has_asked:
            self.world.check_result(index, version, contents)
            held.version, held.contents, held.has_asked, held.is_anew = version, contents, False, self.life > 0
            self._join()

    def _join(self) -> None:
        """A member that came anew goes on from the last version that all chunks have in common."""
        if not self.is_joining or any(held.version is None for held in self.chunks):
            return
        versions = [held.version for held in self.chunks if held.version is not None]
        lowest = min(versions)
        if max(versions) > lowest + 1:
            # All members came anew, and one owner had no more than an old copy.
            self.world.lose()
            return
        if max(versions) == lowest:
            self.is_joining = False
            return
        for index, held in enumerate(self.chunks):
            if held.version == lowest + 1 and not held.has_asked:
                held.has_asked = True
                self.send(index, 0, (ASK, lowest))

    def can_compute(self) -> list[int]:
        """Chunks whose next gradient may be made: all results of the iteration are here."""
        if self.is_joining or any(held.version is None for held in self.chunks):
            return []
        iteration = min(held.version or 0 for held in self.chunks)
        is_open = iteration < self.world.last
        return [i for i, held in enumerate(self.chunks) if is_open and held.version == iteration and not held.is_full]

    def compute(self, index: int) -> None:
        """A hook has fired: the gradient is in the region, over one that is not needed any more."""
        held = self.chunks[index]
        assert held.version is not None
        iteration = held.version + 1
        kept = {} if self.world.sum_only else {i: g for i, g in held.gradients.items() if i == iteration - 1}
        held.gradients = {**kept, iteration: ("g", self.rank, iteration, self.life)}
        held.is_full = True
        self.push(index, iteration)


class Aggregator:
    """One server process; `life` counts its restarts."""

    def __init__(self, world: "World", number: int, life: int) -> None:
        self.world, self.number, self.life = world, number, life
        self.lanes: list[list[Lane]] = [[] for _ in range(world.members_count)]
        self.states: list[Any] = [ffi.new("struct ne_chunk *") for _ in range(world.chunk_count)]
        self.masters: list[dict[int, Any]] = [{} for _ in self.states]
        self.pushes: list[dict[tuple[int, int], Any]] = [{} for _ in self.states]
        self.seeds: list[Any] = [None for _ in self.states]
        self.due: set[int] = set()
        self.plan = self.first_plan = -1
        self.todo: Any = ffi.new("struct ne_chunk_todo *")
        self.event: Any = ffi.new("struct ne_chunk_event *")
        for state in self.states:
            world.lib.ne_chunk_make(state, world.members_count, world.sum_only)

    def step(self, index: int, kind: int, **fields: Any) -> Any:
        """One event for a chunk, and all that follows from it but the update."""
        event, todo, state = self.event, self.todo, self.states[index]
        ffi.memmove(event, bytes(ffi.sizeof("struct ne_chunk_event")), ffi.sizeof("struct ne_chunk_event"))
        event.kind = kind
        for name, value in fields.items():
            setattr(event, name, value)
        self.world.lib.ne_chunk_step(state, event, todo)
        assert not todo.bad, (kind, fields)
        assert not todo.refused, (kind, fields, state.state, state.version)
        if todo.lost:
            self.world.lose()
        if todo.freed:
            self.masters[index] = {}
        self._tell(index, todo)
        for word in ("copied", "pushed", "broken_here", "broken_there"):
            if getattr(todo, word):
                self.world.reports.append((self.number, index, state.epoch, word))
        if todo.update:
            self.due.add(index)
        self.pushes[index] = {
            key: value for key, value in self.pushes[index].items() if self.world.lib.ne_chunk_has_push(state, *key)
        }
        return todo

    def _tell(self, index: int, todo: Any) -> None:
        state, world = self.states[index], self.world
        place = world.plans[self.plan][index] if self.plan >= 0 else None
        moved_to = (place.next, place.next_epoch) if place and place.next is not None else None
        for rank in ranks(todo.moved):
            assert place is not None
            target = moved_to if state.state == LEFT else (place.owner, place.epoch)
            assert target is not None
            self.send(rank, index, 0, ("moved", *target))
        for rank in ranks(todo.result):
            contents = self.seeds[index] if world.sum_only else self.masters[index][todo.result_version]
            self.send(
                rank, index, 1, ("result", todo.result_version, contents, moved_to if todo.result_is_last else None)
            )
        for rank in ranks(todo.given):
            self.send(rank, index, 0, ("given", todo.given_version, self.masters[index][todo.given_version]))
        for rank in ranks(todo.want_have):
            self.send(rank, index, 0, ("want have",))
        for rank in ranks(todo.want_push):
            self.send(rank, index, 0, ("want push", todo.want_iteration))
        for rank in ranks(todo.want_seed):
            self.send(rank, index, 0, ("want seed", todo.seed_version))
        if todo.copy:
            self.copy(index)

    def send(self, rank: int, index: int, stream: int, frame: Frame) -> None:
        """By the member's lane. A newer one counts from the moment at which the end of the old one was seen."""
        if self.lanes[rank] and not self.lanes[rank][0].is_cut:
            self.lanes[rank][0].down[stream].append((*frame, index, self.states[index].epoch))

    def copy(self, index: int) -> None:
        """The mover sends the chunk to the next owner, as it is now."""
        place = self.world.plans[self.plan][index]
        version = self.states[index].version
        assert place.next is not None
        kept = {v: self.masters[index][v] for v in (version - 1, version) if v in self.masters[index]}
        target = self.world.aggregators[place.next]
        self.world.copies.append((target.number, target.life, index, place.next_epoch, version, kept))

    def receive(self, lane: Lane, stream: int) -> None:
        """The first frame of a stream; it stays there if it is ahead of the plan."""
        kind, *rest, index, epoch = frame = lane.up[stream].popleft()
        fields: dict[str, Any] = {"member": lane.member.rank, "epoch": epoch}
        if kind == HAVE:
            version, fields["keeps"], fields["is_anew"] = rest
            fields["has_nothing"], fields["version"] = version is None, version or 0
        else:
            fields["version"] = rest[0]
        state = self.states[index]
        if kind == PUSH:
            # Contents that come inline are kept until nobody asks for them.
            self.pushes[index][lane.member.rank, rest[0]] = rest[1]
        if kind == SEED:
            is_asked = state.is_seeding and state.seeder == lane.member.rank and state.seed_version == rest[0]
            if is_asked and epoch == state.epoch:
                if self.world.sum_only:
                    self.seeds[index] = rest[1]
                else:
                    self.masters[index] = {rest[0]: rest[1]}
        if self.step(index, kind, **fields).wait:
            lane.up[stream].appendleft(frame)
            lane.blocked[stream] = self.plan

    def update(self, index: int) -> None:
        """The job's turn has come."""
        self.due.discard(index)
        state, world = self.states[index], self.world
        # In memory that is shared a member sees to it that nobody reads or writes for a chunk that has another owner.
        if not world.lib.ne_chunk_is_due(state) or (not world.is_inline and any(row[0].is_left for row in self.lanes)):
            return
        version = state.version + 1
        gradients = []
        for rank in range(world.members_count):
            if world.is_inline:
                gradients.append(self.pushes[index][rank, version])
            else:
                region = self.lanes[rank][0].member.chunks[index].gradients
                assert version in region, "a gradient is read that its member has overwritten"
                gradients.append(region[version])
        if world.sum_only:
            self.seeds[index] = ("sum", *gradients)
        else:
            before = self.masters[index][version - 1]
            self.masters[index] = {version - 1: before, version: ("p", hash(before), *gradients)}
        world.updates += 1
        self.step(index, UPDATED)

    def follow(self, number: int) -> None:
        """A plan, a whole state, has come."""
        self.plan = number
        for index, place in enumerate(self.world.plans[number]):
            self.step(
                index, PLAN, epoch=place.epoch, is_mine=place.owner == self.number, has_next=place.next is not None,
                is_next=place.next == self.number, next_epoch=place.next_epoch,
            )  # fmt: skip


class World:
    """All of it, and who does something next."""

    def __init__(
        self, lib: Any, rng: random.Random, *, members: int, chunks: int, sum_only: bool, inline: bool
    ) -> None:
        self.lib, self.rng = lib, rng
        self.members_count, self.chunk_count, self.sum_only, self.is_inline = members, chunks, sum_only, inline
        self.last = 10**9
        self.updates = self.moves = self.deaths = 0
        self.member_deaths = self.joined_moves = 0
        self.is_lost = False
        self.epoch = chunks
        self.plans: list[list[Place]] = [[Place(index % 3, index + 1) for index in range(chunks)]]
        self.reports: deque[tuple[int, int, int, str]] = deque()
        self.copies: deque[tuple[int, int, int, int, int, dict[int, Any]]] = deque()
        self.told: dict[tuple[int, int], set[str]] = {}
        self.aggregators = [Aggregator(self, number, 0) for number in range(3)]
        self.members = [Member(self, rank, 0) for rank in range(members)]
        for aggregator in self.aggregators:
            aggregator.follow(0)

    # ---- what must hold

    def check_result(self, index: int, version: int, contents: Any) -> None:
        """All members get the same contents of a version: its update of the version before, each gradient once."""
        for held in (member.chunks[index] for member in self.members):
            if held.version == version:
                assert held.contents == contents, f"two results of chunk {index}, version {version}"
            if held.version == version - 1 and not self.sum_only:
                assert contents[1] == hash(held.contents), "an update of something else"
        if version == 0:
            assert contents == START
            return
        gradients = contents[1:] if self.sum_only else contents[2:]
        assert [(g[1], g[2]) for g in gradients] == [(rank, version) for rank in range(self.members_count)]

    def lose(self) -> None:
        """A version that nobody can go on from. It takes a member's death and another fault to get there."""
        assert self.member_deaths, "state was lost though every member lives"
        self.is_lost = True

    def versions(self) -> list[int]:
        """What each chunk of each member has."""
        return [held.version or 0 for member in self.members for held in member.chunks]

    # ---- what may happen next

    def actions(self) -> list[tuple[Any, ...]]:
        """Everything that can go on without a fault."""
        found: list[tuple[Any, ...]] = []
        for member in self.members:
            found += [(member.compute, index) for index in member.can_compute()]
            found += [(self.connect, member, n) for n in self._wanted(member)]
            for lane in member.lanes.values():
                found += [(self.to_member, lane, stream) for stream in (0, 1) if lane.down[stream]]
                if lane.is_cut and not any(lane.down):
                    found.append((self.end_at_member, lane))
            if member.plan < len(self.plans) - 1:
                found.append((self.plan_member, member))
        for aggregator in self.aggregators:
            for lanes in aggregator.lanes:
                found += self._lane_actions(aggregator, lanes)
            found += [(aggregator.update, index) for index in aggregator.due]
            if aggregator.plan < len(self.plans) - 1:
                found.append((self.plan_aggregator, aggregator))
        if self.reports:
            found.append((self.report,))
        if self.copies:
            found.append((self.deliver_copy,))
        return found

    def _wanted(self, member: Member) -> set[int]:
        return {held.owner for held in member.chunks} - member.lanes.keys()

    def _lane_actions(self, aggregator: Aggregator, lanes: list[Lane]) -> list[tuple[Any, ...]]:
        if not lanes:
            return []
        lane = lanes[0]
        found: list[tuple[Any, ...]] = [
            (self.to_aggregator, lane, stream)
            for stream in (0, 1)
            if lane.up[stream] and lane.blocked.get(stream) != aggregator.plan
        ]
        waits = all(not lane.up[s] or lane.blocked.get(s) == aggregator.plan for s in (0, 1))
        if lane.is_cut and waits:
            found.append((self.end_at_aggregator, lane))
        return found

    def connect(self, member: Member, number: int) -> None:
        lane = Lane(member, self.aggregators[number])
        member.lanes[number] = lane
        self.aggregators[number].lanes[member.rank].append(lane)
        for index, held in enumerate(member.chunks):
            if held.owner == number:
                member.introduce(index)

    def to_member(self, lane: Lane, stream: int) -> None:
        lane.member.receive(lane.aggregator.number, lane.down[stream].popleft())

    def to_aggregator(self, lane: Lane, stream: int) -> None:
        lane.aggregator.receive(lane, stream)

    def end_at_member(self, lane: Lane) -> None:
        del lane.member.lanes[lane.aggregator.number]

    def end_at_aggregator(self, lane: Lane) -> None:
        lane.aggregator.lanes[lane.member.rank].remove(lane)
        for index in range(self.chunk_count):
            lane.aggregator.step(index, LANE_END, member=lane.member.rank)

    def plan_member(self, member: Member) -> None:
        member.plan = self.rng.randint(member.plan + 1, len(self.plans) - 1)
        for index, place in enumerate(self.plans[member.plan]):
            if place.next_epoch != member.chunks[index].epoch:
                member.follow(index, place.owner, place.epoch)

    def plan_aggregator(self, aggregator: Aggregator) -> None:
        aggregator.follow(self.rng.randint(max(aggregator.first_plan, aggregator.plan + 1), len(self.plans) - 1))

    def deliver_copy(self) -> None:
        number, life, index, epoch, version, kept = self.copies[0]
        target = self.aggregators[number]
        if target.life != life:
            self.copies.popleft()
            return
        state = target.states[index]
        if state.state == COMING and state.epoch == epoch:
            target.masters[index] = kept
        elif state.epoch > epoch or (state.state in (GONE, EMPTY) and target.plan == len(self.plans) - 1):
            self.copies.popleft()
            return
        is_late = target.step(index, COPY, epoch=epoch, version=version, has_previous=version - 1 in kept).wait
        if not is_late:
            self.copies.popleft()
        elif target.plan < len(self.plans) - 1:
            self.plan_aggregator(target)

    def report(self) -> None:
        """The planner hears of a move; when both ends are done, the commit."""
        number, index, epoch, word = self.reports.popleft()
        place = self.plans[-1][index]
        is_of_move = place.next is not None and (place.owner, place.epoch) == (number, epoch)
        if word in ("broken_here", "broken_there") and is_of_move:
            self.epoch += 1
            owner = place.next if word == "broken_here" and place.next is not None else number
            self.write(index, Place(owner, self.epoch))
        if place.next == number and place.next_epoch == epoch:
            told = self.told.setdefault((index, epoch), set())
            told.add(word)
            if told >= {"copied", "pushed"}:
                self.write(index, Place(number, epoch))
                self.joined_moves += 1

    def write(self, index: int, place: Place) -> None:
        """The next plan."""
        self.plans.append([place if i == index else old for i, old in enumerate(self.plans[-1])])

    # ---- faults and moves

    def begin_move(self) -> None:
        index = self.rng.randrange(self.chunk_count)
        place = self.plans[-1][index]
        if place.next is None:
            self.epoch += 1
            self.moves += 1
            target = self.rng.choice([n for n in range(3) if n != place.owner])
            self.write(index, Place(place.owner, place.epoch, target, self.epoch))

    def reassign(self) -> None:
        """A move is withdrawn, or another owner is named, whatever the old one does."""
        index = self.rng.randrange(self.chunk_count)
        place = self.plans[-1][index]
        self.epoch += 1
        owner = place.owner if place.next is not None else self.rng.randrange(3)
        self.write(index, Place(owner, self.epoch))

    def cut_lane(self) -> None:
        lanes = [lane for member in self.members for lane in member.lanes.values() if not lane.is_cut]
        if lanes:
            self.rng.choice(lanes).cut(self.rng)

    def kill_aggregator(self) -> None:
        number = self.rng.randrange(3)
        old = self.aggregators[number]
        for lane in [lane for lanes in old.lanes for lane in lanes]:
            if not lane.is_cut:
                lane.cut(self.rng)
        self.deaths += 1
        self.aggregators[number] = Aggregator(self, number, old.life + 1)
        # The node's agent tells it the plan, and has no older one than what it told the life before.
        self.aggregators[number].first_plan = max(old.plan, old.first_plan)
        for other in self.aggregators:
            for index, state in enumerate(other.states):
                if state.state == LEFT and self.plans[other.plan][index].next == number:
                    # A copy that has not arrived is sent again.
                    if any(copy[:3] == (number, old.life, index) for copy in self.copies):
                        other.copy(index)
                    else:
                        other.step(index, NEXT_ANEW)

    def kill_member(self) -> None:
        if self.sum_only:
            return
        old = self.rng.choice(self.members)
        for lane in old.lanes.values():
            if not lane.is_cut:
                lane.cut(self.rng)
        self.deaths += 1
        self.member_deaths += 1
        self.members[old.rank] = Member(self, old.rank, old.life + 1)

    # ---- a run

    def run(self, steps: int, faults: dict[str, float]) -> None:
        """Random steps with faults, then without any until every member has gone three iterations on."""
        names, weights = list(faults), list(faults.values())
        for _ in range(steps):
            if self.is_lost:
                return
            if self.rng.random() < sum(weights):
                getattr(self, self.rng.choices(names, weights)[0])()
            self._act()
        self.last = max(self.versions()) + 3
        for _ in range(400 * self.chunk_count * self.members_count * 3):
            if self.is_lost or min(self.versions()) >= self.last:
                return
            self._act(must=True)
        raise AssertionError(f"stuck at {self.versions()}")

    def _act(self, *, must: bool = False) -> None:
        actions = self.actions()
        assert actions or not must, f"nothing can go on at {self.versions()}"
        if actions:
            act, *arguments = self.rng.choice(actions)
            act(*arguments)
            versions = [[held.version for held in member.chunks] for member in self.members if not member.is_joining]
            for column in zip(*versions, strict=True):
                assert max(column) - min(column) <= 1, "two members are two versions apart"
