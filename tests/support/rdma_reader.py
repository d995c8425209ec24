"""A borrower that does nothing but read from `rdma_donor`, until its queue pair dies; then it says of what, and when.

`python -m tests.support.rdma_reader ADDRESS PORT`: prints `reading`, and at the end, as JSON, the seconds from the last
page that came to the link's death, the errno that it died of, and the number of pages.
"""

import json
import select
import sys
import tempfile
import time
from pathlib import Path

from farside.kmod_shim.engine.binding import MOVER, DonorState, EngineEvent, EventKind, Protection, RdmaLink, SlabInfo
from tests.support.nbd_client import Command, NbdClient
from tests.support.rdma_donor import LEASE, TOKEN, RdmaDonor
from tests.support.rig import PAGE_BYTES, RDMA_LIMIT_MS, Rig, default_params

DEADLINE_MS = 30_000  # ours: far above what the queue pair takes
LOOK_EVERY_S = 0.002


def link(rig: Rig, donor: RdmaDonor) -> None:
    """Reaches the donor's slab by queue pairs; granule 0 is there from now on."""
    rig.device.donor_set(0, DonorState.UP)
    for worker in (0, MOVER):
        sock = donor.connect()
        pair = RdmaLink(sock.fileno(), RDMA_LIMIT_MS)
        sock.detach()
        rig.device.link_attach_rdma(0, worker, pair)
    rig.device.slab_add(SlabInfo(slab=0, donor=0, lease=LEASE, epoch=1, token=TOKEN), -1)
    rig.device.cluster_map(0, 0, 0)


def read_until_it_dies(rig: Rig, client: NbdClient) -> tuple[int, float, EngineEvent]:
    """(pages, when the last one came, the end)."""
    pages, last_s = 0, time.monotonic()
    while True:
        client.send(Command.READ, 0, PAGE_BYTES)
        while not select.select([client.sock], [], [], LOOK_EVERY_S)[0]:
            event = rig.device.event_next()
            if event is not None and event.kind is EventKind.LINK_DOWN:
                return pages, last_s, event
        client.reply()
        pages, last_s = pages + 1, time.monotonic()
        if pages == 100:
            print("reading", flush=True)


def main(address: str, port: int) -> None:
    """The process itself."""
    params = default_params(workers=1, protection=Protection.NONE, deadline_ms=DEADLINE_MS)
    with tempfile.TemporaryDirectory() as folder, Rig(Path(folder), params) as rig:
        link(rig, RdmaDonor(pid=0, address=address, port=port))
        client = rig.connect()
        client.write(0, b"farside!" * (PAGE_BYTES // 8))
        pages, last_s, event = read_until_it_dies(rig, client)
        print(json.dumps({"seconds": time.monotonic() - last_s, "errno": event.c, "pages": pages}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
