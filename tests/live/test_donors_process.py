"""A borrower's peers file follows a real manager: four processes, and a donor that a test plays."""

from pathlib import Path

import pytest

from farside.blockdev.peers_file import DonorAddress, read_peers
from farside.client.manager_client import ManagerClient
from tests.agent.donor import DONOR, serving
from tests.agent.process import agent, status, until_connected, write_config
from tests.live.manager import Manager, running_manager
from tests.support.waiting import until

D1 = DonorAddress(node="d1", control="tcp:127.0.0.1:7677", owner="n1")


def config(folder: Path, manager: Manager, node: str, **more: str) -> Path:
    folder.mkdir()
    return write_config(folder, manager.url, token=manager.node_token(node), node=node, **more)


@pytest.mark.long
def test_a_donor_that_comes_is_in_the_peers_file_and_stays_there_without_a_manager(tmp_path: Path) -> None:
    lender, borrower, peers = tmp_path / "lender", tmp_path / "borrower", tmp_path / "peers.toml"
    with (
        running_manager(tmp_path / "manager") as manager,
        agent(config(borrower, manager, "n2", peers_file=str(peers))),
        serving(tmp_path / "donor.sock", DONOR),
        agent(config(lender, manager, "n1", daemon_socket=str(tmp_path / "donor.sock"))),
    ):
        until(lambda: peers.exists() and D1 in read_peers(peers), what="a donor in the peers file", deadline_s=60)
        with ManagerClient(manager.address) as client:
            until(lambda: client.get("donors")["donors"][0]["lends"], what="a donor that lends", deadline_s=60)
            (told,) = client.get("donors")["donors"]
            own = client.get("donors", node="n1")["donors"]

        manager.kill_all()
        until(lambda: not status(borrower)["connected"], what="an agent without a manager", deadline_s=60)
        without = read_peers(peers)
        manager.start()
        until_connected(borrower)
        again = read_peers(peers)

    assert (told["node"], told["donor"], told["control"], told["lendable_bytes"]) == ("n1", "d1", D1.control, 3 << 26)
    assert told["loans"][0]["bytes"] > 0
    assert own == []
    assert without == again == (D1,)
