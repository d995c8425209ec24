"""nbdinfo, libnbd's looking glass, against our server."""

import json

import pytest

from tests.interop.server import Server
from tests.support.programs import need, outcome, run


def test_the_size_is_told(server: Server) -> None:
    need("nbdinfo")

    assert run(["nbdinfo", "--size", server.uri]).strip() == str(server.size_bytes)


@pytest.mark.parametrize("ability", ["connect", "flush", "fua", "trim", "zero", "multi-conn"])
def test_an_ability_is_advertised(server: Server, ability: str) -> None:
    need("nbdinfo")

    assert outcome(["nbdinfo", "--can", ability, server.uri]).status == 0


@pytest.mark.parametrize("trait", ["read-only", "rotational"])
def test_a_trait_that_a_swap_device_must_not_have_is_absent(server: Server, trait: str) -> None:
    need("nbdinfo")

    assert outcome(["nbdinfo", "--is", trait, server.uri]).status == 2


def test_the_list_names_one_export_of_the_right_size(server: Server) -> None:
    need("nbdinfo")

    told = json.loads(run(["nbdinfo", "--list", "--json", server.uri]))

    assert told["protocol"] == "newstyle-fixed"
    assert [export["export-size"] for export in told["exports"]] == [server.size_bytes]


def test_a_tcp_listener_tells_the_same(server: Server) -> None:
    need("nbdinfo")

    assert run(["nbdinfo", "--size", server.tcp_uri]).strip() == str(server.size_bytes)
