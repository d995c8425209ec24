"""Reconciliation after a takeover: makes table and engine agree, and resumes what the last process had begun.

The table is always saved before the engine gets something, and what comes free is saved after the engine has reported
it. So everything the engine holds is in the table, and each difference below has one reason.
"""

from farside.blockdev.context import Context
from farside.blockdev.mapping.mapper import start_granule_drain
from farside.blockdev.mapping.recall import Recaller
from farside.blockdev.mapping.table import FREE, Slab
from farside.errors import EngineError
from farside.kmod_shim.engine.binding import SlabState
from farside.log import get_log

log = get_log("blockdev.reconcile")


def reconcile(context: Context, recaller: Recaller) -> tuple[Slab, ...]:
    """Compares all slabs and their granules with the engine's; drops or frees what differs.

    Returns the slabs that the last process was emptying: the caller goes on with them once donors are back.
    """
    emptying = []
    for slab in tuple(context.table.slabs.values()):
        state = _engine_state(context, slab)
        if state is SlabState.NONE:
            # Leased and not yet added, or removed and not yet confirmed: the donor gets its RELEASE or DONE when it is
            # back.
            context.table.strip(slab.slab)
            slab.draining = slab.returned = True
            continue
        # The donor was lost, and the last process may have died before the engine dropped this slab.
        if slab.failed:
            recaller.drain(slab, deadline_s=0.0, fail=True)
        # Being emptied, by the table or by the engine. The caller waits for donors first, so that granules can still
        # move.
        elif slab.draining or state is not SlabState.LIVE:
            slab.draining = True
            emptying.append(slab)
        else:
            _reconcile_granules(context, slab)
    log.info("server took the device over", slabs=len(context.table.slabs), takeovers=context.table.counters.takeovers)
    return tuple(emptying)


def _engine_state(context: Context, slab: Slab) -> SlabState:
    try:
        info = context.engine.slab_get(slab.slab)
    except EngineError:
        return SlabState.NONE
    # The number may have been used again for a lease that the engine never got. What the engine has under it is then
    # the old slab.
    return SlabState(info.state) if info.token == slab.token else SlabState.NONE


def _reconcile_granules(context: Context, slab: Slab) -> None:
    for extent, granule in enumerate(slab.granules):
        if granule == FREE:
            continue
        mappings = [h for h in context.engine.cluster_get(granule) if (h.slab, h.extent) == (slab.slab, extent)]
        if not mappings:
            context.table.give(granule, slab.slab)  # taken but never mapped, or drained but not saved
        # The engine had begun to empty this mapping; the new process has no job for it yet.
        elif not mappings[0].writable:
            start_granule_drain(context, granule, slab.slab)
