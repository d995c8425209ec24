"""A program takes the manager's port at any moment of its restarts: an agent's process gives it nothing [H2]."""

import base64
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

import msgspec
import pytest

from farside.agent.mutual_proof import HEADER, key_of
from tests.agent.frames import SPEC
from tests.agent.impostor import GENERATION, Impostor, Thief, of_before, proofs
from tests.agent.node import ME
from tests.agent.process import agent, status, until_connected, write_config
from tests.live.manager import Manager, running_manager
from tests.support.waiting import until

MOMENTS = ("it is stopped", "it is killed", "its API process is killed", "it starts again")
MEETINGS_MAX = 3


class Restarts:
    """A manager that ends and starts again, an impostor that has its port in between, and a node of the manager's."""

    def __init__(self, manager: Manager, folder: Path, impostor: Impostor) -> None:
        self._manager, self._folder, self._impostor = manager, folder, impostor
        self._rng = random.Random(16)
        self._numbers = count()
        self.results = folder / "obeyed"

    def once(self, moment: str, proof: Callable[[str], str]) -> None:
        """The manager ends, the impostor comes at this moment and leaves at any, and the node obeys the manager."""
        manager, self._impostor.proof = self._manager, proof
        with Thief(self._impostor, manager.port) as thief:
            self._end(moment, thief)
            until(thief.has_port.is_set, what="the manager's port")
            if moment == "it starts again":
                manager.spawn()
                self._until_refused()
            meetings = self._impostor.met + self._rng.randint(1, MEETINGS_MAX)
            until(lambda: self._impostor.met >= meetings, what="an agent that comes to the impostor")
            until(lambda: "pro" in status(self._folder).get("problem", ""), what="that the impostor proves nothing")
        manager.start()
        until_connected(self._folder)
        self.obey()

    def obey(self) -> None:
        """The node does what its manager says."""
        number = next(self._numbers)
        job = self._manager.submit("sh", "-c", f"echo {number} >>{self.results}", cwd=str(self._folder))
        until(lambda: self._manager.job(job)["state"] == "done", what=f"job {job}")

    def _end(self, moment: str, thief: Thief) -> None:
        if moment == "it is stopped":
            self._manager.stop()
        elif moment == "its API process is killed":
            until(lambda: self._lost_api(thief), what="the port of a killed API process", every_s=0.005)
            self._until_refused()
        else:
            self._manager.kill_all()

    def _lost_api(self, thief: Thief) -> bool:
        """The next one has the port before the thief, where that got no processor in time: then once more."""
        if not thief.has_port.is_set() and self._manager.is_ready():
            with suppress(ProcessLookupError):
                self._manager.kill("api")
        return thief.has_port.is_set()

    def _until_refused(self) -> None:
        """Returns when the manager has ended because its port is another's, as it says in one line."""
        assert self._manager.process is not None
        assert self._manager.process.wait(60) != 0
        assert f"tcp:127.0.0.1:{self._manager.port}: Address already in use" in self._manager.log()


def read_all(source: IO[str]) -> None:
    """Reads a process's log, which would have it wait when nobody does."""

    def read() -> None:
        with suppress(ValueError):  # closed, as the process has ended
            for _ in source:
                pass

    threading.Thread(target=read, daemon=True).start()


@pytest.mark.long
@pytest.mark.parametrize("restarts", [4, pytest.param(50, marks=pytest.mark.timeout(1200), id="fifty restarts")])
def test_an_impostor_at_any_moment_of_a_managers_restarts_gets_and_does_nothing(
    restarts: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    at_agent, stolen = tmp_path / "a", tmp_path / "stolen"
    at_agent.mkdir()
    spec = msgspec.structs.replace(SPEC, argv=("touch", str(stolen)), user=ME, gpus=(), stdout=str(tmp_path / "out"))
    with running_manager(tmp_path / "m") as manager:
        token = manager.node_token("n1")
        shown = [of_before, *proofs(token).values()]
        impostor = Impostor(shown[0], spec=spec)
        with agent(write_config(at_agent, manager.url, token=token)) as process:
            assert process.stderr is not None
            read_all(process.stderr)
            until_connected(at_agent)
            made = Restarts(manager, at_agent, impostor)
            for number in range(restarts):
                made.once(MOMENTS[number % len(MOMENTS)], shown[number % len(shown)])
            told, generation = status(at_agent), manager.get("health")["generation"]

    secrets = (token, key_of(token).hex(), base64.b64encode(token.encode()).decode().rstrip("="))
    text = "\n".join(impostor.heard)
    assert HEADER in text, "agents came"
    assert [secret for secret in secrets if secret in text or secret.encode() in impostor.raw] == []
    assert "hello" not in text, "HELLO says what runs on the node"
    assert not stolen.exists()
    assert made.results.read_text().split() == [str(number) for number in range(restarts)]
    assert (told["is_manager_proved"], told["generation"]) == (True, generation)
    assert generation < GENERATION
    record_property(
        "told",
        {
            "restarts": restarts, "connections to the impostor": impostor.met, "bytes it got": len(impostor.raw),
            "tokens in them": 0, "commands of it obeyed": 0, "jobs of the manager run after it": restarts,
        },
    )  # fmt: skip
