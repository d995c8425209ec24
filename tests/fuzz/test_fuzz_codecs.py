"""Three codecs against random bytes, guided by coverage: the targets `fuzz_*.py` in a process of their own, shortly.

The seeds are whole conversations, made by the codecs themselves.
"""

import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from farside.agent import messages as agent_messages
from farside.agent.mutual_proof import key_of, offer
from farside.agent.protocol import encode
from farside.blockdev.client.handshake import IHAVEOPT, Option
from farside.daemon.control import messages as m
from tests.agent.frames import HELLO, report, start
from tests.fuzz.test_fuzz_nbd import FUZZ_S

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 90 + FUZZ_S
KEY_ID = bytes(8)


def option(number: int, data: bytes = b"") -> bytes:
    """An option as a client sends it."""
    return struct.pack(">QII", IHAVEOPT, number, len(data)) + data


def handshakes() -> list[bytes]:
    """What clients open with; the byte in front lets them in, or not."""
    go = struct.pack(">I5sH3H", 5, b"swap0", 3, 0, 1, 3)
    flags = struct.pack(">I", 3)
    talks = [
        flags + option(Option.GO, go),
        flags + option(Option.INFO, go) + option(Option.LIST) + option(Option.ABORT),
        flags + option(Option.STRUCTURED_REPLY) + option(Option.STARTTLS) + option(77, b"x") + option(Option.GO, go),
        flags + option(Option.EXPORT_NAME, b"swap0"),
        struct.pack(">I", 1) + option(Option.EXPORT_NAME),
    ]
    return [bytes([refused]) + talk for refused in (0, 1) for talk in talks]


MESSAGES: list[m.Message] = [
    m.Hello(version_min=1, version_max=1, features=3, node="b1", role="control", key_ids=(KEY_ID,), nonce=b"n" * 32),
    m.HelloReply(version=1, features=1, node="d1", key_id=KEY_ID, nonce=b"n" * 32, proof=b"p" * 32),
    m.Auth(proof=b"p" * 32),
    m.Welcome(session=7, slab_bytes=1 << 26, lease_expiry_s=30.0),
    m.QueryMem(device="swap0"),
    m.FreeMem(free_slabs=1, used_bytes=2, total_bytes=3, headroom_bytes=4, slab_bytes=5),
    m.Map(device="swap0", count=3),
    m.MrInfo(leases=(m.Lease(lease=3, token=2**63, rkey=4, addr=5, length=1 << 26, epoch=6),)),
    m.Resume(device="swap0", leases=((1, 2**63), (2, 5))),
    m.CheckActivity(leases=(1, 2)),
    m.Activity(activity=((1, 2.5), (2, 0.0))),
    m.Migrate(leases=(1,), deadline_s=5.0),
    m.Evict(leases=(2,), deadline_s=0.5),
    m.Done(lease=1, moved_pages=2, dropped_pages=3),
    m.Release(leases=(1, 2)),
    m.KeepAlive(),
    m.Error(code=6, message="full"),
    m.Ok(),
]


def controls() -> list[bytes]:
    """Each message to each role, alone and among others, as frames and as bodies that the target frames."""
    bodies = {kind: msgspec.msgpack.encode(message) for message in MESSAGES for kind in [m.TYPE_NUMBERS[type(message)]]}
    records = [struct.pack("<BH", kind, len(body)) + body for kind, body in bodies.items()]
    frames = [struct.pack("<IHHI", 8 + len(body), 1, kind, 0) + body for kind, body in bodies.items()]
    asked = b"".join(records[4:])
    talks = [(4 | 16, record) for record in [*records, asked]] + [(16, frame) for frame in frames]
    return [bytes([script | role | stage, 1]) + talk for script, talk in talks for role in (0, 1) for stage in (0, 2)]


def agents() -> list[bytes]:
    """What an agent and its manager say, in the order of a connection, to each end; and an offer of proof."""
    told = (agent_messages.Welcome(generation=3), start(generation=3), agent_messages.Ack(seq=1))
    frames = [[encode(one) for one in ones] for ones in ((HELLO, report(1), report(2)), told, (report(1),), told[1:])]
    talks = ["\0".join(words).encode() for words in frames]
    header = offer(key_of("token"), bytes(32)).text.encode()
    return [bytes([script]) + talk for script in range(8) for talk in talks] + [bytes([8]) + header]


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "seeds"),
    [("fuzz_handshake", handshakes()), ("fuzz_control", controls()), ("fuzz_agent", agents())],
    ids=["handshake", "control", "agent"],
)
def test_random_bytes_are_events_or_the_peers_fault(target: str, seeds: list[bytes], tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is missing (it has no wheel for every Python); pip install -r requirements/dev.txt")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for n, seed in enumerate(seeds):
        (corpus / str(n)).write_bytes(seed)

    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{target}", str(corpus), f"-max_total_time={FUZZ_S}", "-max_len=2048",
         f"-artifact_prefix={tmp_path}/"],
        cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert "Done" in done.stderr
