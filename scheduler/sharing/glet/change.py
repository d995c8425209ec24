"""From one plan to the next: GPUs are numbered so that most stays, and what has to be done is listed. PURE."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from farside.scheduler.sharing.glet.check import exceeds_memory, memory_mb
from farside.scheduler.sharing.glet.plan import Glet, Plan
from farside.scheduler.sharing.glet.profile import DeviceProfile, ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Glets that stay as they are, that keep part and models with other batches, that are prepared, that are closed."""

    stay: tuple[Glet, ...]
    retime: tuple[Glet, ...]
    prepare: tuple[Glet, ...]
    close: tuple[Glet, ...]


def renumbered(old: Plan, new: Plan) -> Plan:
    """The new plan with its GPUs numbered like those of the old one that they have most in common with."""
    found = placed(old, new, {glet.gpu for glet in old.glets} | set(range(old.gpus + new.gpus)))
    assert found is not None, "there are numbers enough"
    return found


def placed(old: Plan, new: Plan, usable: Collection[int]) -> Plan | None:
    """The new plan on usable GPUs, so that most of what the old one has there stays; None: they are too few."""
    theirs, ours = _by_gpu(old), _by_gpu(new)
    if len(ours) > len(usable):
        return None
    pairs = sorted(
        (-_common(theirs[before], ours[after]), before, after)
        for before in theirs
        if before in usable
        for after in ours
    )
    numbers: dict[int, int] = {}
    for _, before, after in pairs:
        if after not in numbers and before not in numbers.values():
            numbers[after] = before
    unused = (number for number in sorted(usable) if number not in set(numbers.values()))
    for after in ours:
        if after not in numbers:
            numbers[after] = next(unused)
    return _ordered(msgspec.structs.replace(glet, gpu=numbers[glet.gpu]) for glet in new.glets)


def beside(old: Plan, new: Plan, gpus: int) -> Plan:
    """The new plan, and what the old one has on GPUs that the new one does not use; ``gpus`` in all at most.

    Where not all of those may stay, the ones whose parts are largest do.
    """
    used = {glet.gpu for glet in new.glets}
    parts = old.gpu_parts()
    others = sorted(parts.keys() - used, key=lambda gpu: (-parts[gpu], gpu))
    kept = others[: max(0, gpus - len(used))]
    return _ordered((*new.glets, *(glet for glet in old.glets if glet.gpu in kept)))


def changes(old: Plan, new: Plan) -> Change:
    """What leads from one plan to the other. Equal size and models on the same GPU: nothing is started anew."""
    left, other = list(old.glets), list[Glet]()
    stay, retime, prepare = list[Glet](), list[Glet](), list[Glet]()
    for glet in new.glets:
        if glet in left:
            left.remove(glet)
            stay.append(glet)
        else:
            other.append(glet)
    for glet in other:
        found = next((one for one in left if _place(one) == _place(glet)), None)
        if found is None:
            prepare.append(glet)
        else:
            left.remove(found)
            retime.append(glet)
    return Change(stay=tuple(stay), retime=tuple(retime), prepare=tuple(prepare), close=tuple(left))


def closed_first(
    running: Sequence[Glet],
    leaving: Sequence[Glet],
    preparing: Sequence[Glet],
    models: Mapping[str, ModelProfile],
    device: DeviceProfile,
) -> frozenset[int]:
    """GPUs whose memory does not hold what runs there beside what is prepared: what leaves them is closed first.

    Args:
        running: All glets that have an executor, or are to have one again.
        leaving: Those of them that the new plan lacks.
        preparing: Those that need a new executor.
        models: With their memory, by name.
        device: What each GPU is.
    """
    both = (*running, *preparing)
    return frozenset(
        gpu
        for gpu in {glet.gpu for glet in leaving} & {glet.gpu for glet in preparing}
        if exceeds_memory(memory_mb((glet for glet in both if glet.gpu == gpu), models, device), device)
    )


def _ordered(glets: Iterable[Glet]) -> Plan:
    return Plan(glets=tuple(sorted(glets, key=lambda glet: (glet.gpu, -glet.part_pct, glet.models))))


def _place(glet: Glet) -> tuple[object, ...]:
    # Of two equal halves with the same models either may be which, but there are two.
    return (glet.gpu, glet.part_pct, tuple(sorted(one.model for one in glet.models)))


def _kind(glet: Glet) -> tuple[object, ...]:
    return _place(glet)[1:]


def _by_gpu(plan: Plan) -> dict[int, list[Glet]]:
    found: dict[int, list[Glet]] = {}
    for glet in plan.glets:
        found.setdefault(glet.gpu, []).append(glet)
    return found


def _common(one: Sequence[Glet], other: Sequence[Glet]) -> int:
    """Percent of a GPU that need not be started anew."""
    same = Counter(_kind(glet) for glet in one) & Counter(_kind(glet) for glet in other)
    return sum(int(str(kind[0])) * count for kind, count in same.items())
