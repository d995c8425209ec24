"""The same tiny training job over RDMA: ``training_rdma.py worker|server ADDRESS PORT ITERATIONS``.

Connections by rdma_cm, messages by ibv_post_send, through pyverbs. Waits for each message, so that nothing has to be
in flight: what matters here is what is sent.
"""

import sys
import time

import pyverbs.cm_enums as cme
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPCap, QPInitAttr

TENSORS = (4_000, 300_000, 2_000, 30_000, 1_000)
STEP_S = 0.02


def main() -> None:
    role, address, port, iterations = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    listener = listening(address, port) if role == "server" else None  # kept as long as what came of it
    identity = connected(address, port) if listener is None else accepted(listener)
    inbox, outbox = identity.reg_msgs(max(TENSORS)), identity.reg_msgs(max(TENSORS))
    identity.post_recv(inbox)  # the peer's first message waits for it: the adapter tries again without end
    for _ in range(iterations):
        if role == "worker":
            time.sleep(STEP_S)
            send(identity, outbox)
        receive(identity, inbox)
        if role == "server":
            send(identity, outbox)


def attributes() -> QPInitAttr:
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4), sq_sig_all=1)


def listening(address: str, port: str) -> CMID:
    told = AddrInfo(src=address, src_service=port, port_space=cme.RDMA_PS_TCP, flags=cme.RAI_PASSIVE)
    made = CMID(creator=told, qp_init_attr=attributes())
    made.listen()
    return made


def accepted(listener: CMID) -> CMID:
    found = listener.get_request()
    found.accept()
    return found


def connected(address: str, port: str) -> CMID:
    for _ in range(600):
        told = AddrInfo(src=address, dst=address, dst_service=port, port_space=cme.RDMA_PS_TCP, flags=0)
        made = CMID(creator=told, qp_init_attr=attributes())
        try:
            made.connect()
            return made
        except PyverbsError:
            made.close()
            time.sleep(0.1)
    raise SystemExit("no server")


def send(identity: CMID, outbox: object) -> None:
    for size in TENSORS:
        identity.post_send(outbox, length=size)
        identity.get_send_comp()


def receive(identity: CMID, inbox: object) -> None:
    for _ in TENSORS:
        identity.get_recv_comp()
        identity.post_recv(inbox)


if __name__ == "__main__":
    main()
