"""The example that trains with PyTorch over gloo, as the profiler sees it."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from farside.agent.profile.ring_file import LIBRARY
from tests.agent.node import Node
from tests.support.ports import free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0  # two interpreters that load PyTorch at once, on a busy machine
GRADIENT_BYTES = 4 * (16 * 64 + 64 + 64 + 1)

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
    pytest.mark.skipif(not LIBRARY.exists(), reason="the profiler's library was not built"),
]


def test_two_workers_that_share_their_gradients_tell_how_many_there_are(tmp_path: Path) -> None:
    node, port = Node(tmp_path / "state"), free_port()
    env = {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    command = (sys.executable, str(ROOT / "examples/train.py"), "--steps", "60", "--pace-s", "0.02")
    for rank in (0, 1):
        node.start(
            "", task_id=f"1.{rank}", argv=command, profile=True, checkpoint_dir=str(tmp_path), env=env, rank=rank,
            world_size=2, master_addr="127.0.0.1", master_port=port,
        )  # fmt: skip

    def are_over() -> bool:
        return all(node.state(f"1.{rank}").state == "exited" for rank in (0, 1))

    until(are_over, what="both workers to end", deadline_s=DEADLINE_S)
    ends = [node.state(f"1.{rank}") for rank in (0, 1)]

    assert [end.exit_code for end in ends] == [0, 0], node.output()
    for end in ends:
        assert end.profile is not None
        assert end.profile.problem == ""
        assert end.profile.iterations >= 20
        # Gloo's own heads, and whether somebody is told to stop, come on top.
        assert GRADIENT_BYTES <= end.profile.sent_bytes <= 1.3 * GRADIENT_BYTES
        assert end.profile.largest_bytes >= 0.75 * end.profile.sent_bytes
