"""`farside serve run` as users start it: real models in executors of their own, real sockets, kill -9."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from farside import admin
from farside.cli.demo.serving_load import OpenLoop, Target, poisson
from farside.errors import PeerError
from farside.serve.status import ServeStatus
from tests.serving.executors import small_models
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S, text_of, until

MODELS = ("mlp", "lstm")
SLO_MS = 30_000
# No executor of a machine that others use counts as hung because it had no processor for a second.
PATIENT = "from farside.agent.serving import handle\nhandle.LIMIT_S_MIN = 60.0\nfrom farside.cli import main\nmain()"


class Deployed:
    """A deployment in a process of its own, on the whole of this machine's cores."""

    def __init__(
        self, folder: Path, *arguments: str, extra: str = "", slo_ms: int = SLO_MS, latency_ms: float = 20.0,
        rate: int = 20, device: str = "whole",
    ) -> None:  # fmt: skip
        pytest.importorskip("grpc", reason="needs grpcio (requirements/serving.txt)")
        self.folder, self.http, self.grpc = folder, free_port(), free_port()
        self.files = small_models(folder, MODELS, max_batch=8)
        write_profile(folder / "profile", slo_ms, latency_ms)
        lines = [
            f'http_listen = "tcp:127.0.0.1:{self.http}"', f'grpc_listen = "tcp:127.0.0.1:{self.grpc}"',
            'metrics_listen = ""', 'admin_socket = "s"', 'profile = "profile"', f'device = "{device}"', extra,
        ]  # fmt: skip
        for name in MODELS:
            lines += [
                f"[model.{name}]",
                f'file = "{name}.onnx"',
                f"slo_ms = {slo_ms}",
                f"rate = {rate}",
                "max_batch = 8",
            ]
        (folder / "serving.toml").write_text("\n".join(lines))
        self.socket, self.log, self._arguments = folder / "s", folder / "log", arguments
        self.process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PATIENT, "serve", "run", str(self.folder), *self._arguments], stderr=log
            )

    def again(self) -> "Deployed":
        """Starts it again, after it has ended."""
        self.process = self._started()
        return self

    def ready(self) -> "Deployed":
        until(lambda: "serve: ready" in text_of(self.log) or self.process.poll() is not None, what="it is ready")
        assert self.process.poll() is None, text_of(self.log)
        return self

    def status(self) -> ServeStatus:
        return msgspec.convert(admin.call(self.socket, "status"), ServeStatus)

    def load(self, times: list[tuple[float, str]]) -> OpenLoop:
        targets = {
            file.name: Target(
                model=file.name, input=file.inputs[0].name, shape=file.inputs[0].shape, slo_ms=SLO_MS
            )
            for file in self.files
        }  # fmt: skip
        return OpenLoop("127.0.0.1", self.http, targets)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def write_profile(folder: Path, slo_ms: int, latency_ms: float = 20.0) -> None:
    """Latencies that are true of small models on a machine under load."""
    folder.mkdir()
    rows = [
        f"{name},{part},{batch},{latency_ms * 100 / part}" for name in MODELS for part in (50, 100) for batch in (1, 8)
    ]
    (folder / "x-LATENCY.csv").write_text("\n".join(["model,part_pct,batch,latency_ms", *rows]))
    listed = [f"{name},{slo_ms},10,x" for name in MODELS]
    (folder / "models.csv").write_text("\n".join(["model,slo_ms,mem_mb,input", *listed]))


def kill_one(deployed: Deployed) -> None:
    """Kills the executor, and returns when another one is there."""
    pid = until(lambda: deployed.status().glets[0].pid, what="it runs")
    os.kill(pid, signal.SIGKILL)
    until(lambda: deployed.status().glets[0].pid not in (0, pid), what="it runs again")


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    found = Deployed(tmp_path).ready()
    yield found
    if found.process.poll() is None:
        found.process.kill()
        found.process.wait()


def test_a_killed_executor_loses_nothing_and_sigterm_ends_all(deployed: Deployed) -> None:
    times = poisson(dict.fromkeys(MODELS, 40.0), 4.0, 1)

    async def test() -> None:
        running = asyncio.ensure_future(deployed.load(times).run(times))
        for _ in range(2):
            await asyncio.sleep(0.5)  # the load goes on meanwhile
            await asyncio.to_thread(kill_one, deployed)
        result = await running
        counts = result.counts()
        assert counts["lost"] == counts["doubled"] == counts["wrong"] == counts["refused"] == 0
        assert counts["met"] > 0.5 * len(times), counts

    asyncio.run(test())
    status = deployed.status()
    shown = subprocess.run(
        [sys.executable, "-m", "farside", "serve", "status", str(deployed.folder), "--json"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert msgspec.json.decode(shown.stdout, type=ServeStatus).deaths == 2
    assert status.deaths == 2
    assert status.stray == 0
    assert sum(one.met + one.late + one.dropped + one.rejected + one.failed for one in status.models) == len(times)
    assert status.ready
    assert deployed.end() == 0
    for one in status.glets:
        assert not Path(f"/proc/{one.pid}").exists()
    with pytest.raises(PeerError):
        deployed.status()


def test_the_loop_of_a_front_tells_systemd_again_and_again_that_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        deployed = Deployed(tmp_path)
        try:
            while systemd.recv(4096) != b"READY=1":
                pass
            assert [systemd.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        finally:
            deployed.process.kill()
            deployed.process.wait()


def test_a_given_plan_is_served_and_an_unsound_one_refused(tmp_path: Path) -> None:
    glet = {"gpu": 0, "part_pct": 100, "cycle_ms": 100.0}
    portions = [{"model": name, "batch": 4, "rate": 20.0} for name in MODELS]
    (tmp_path / "good.json").write_bytes(msgspec.json.encode([{**glet, "models": portions}]))
    (tmp_path / "bad.json").write_bytes(msgspec.json.encode([{**glet, "cycle_ms": 30.0, "models": portions}]))
    (tmp_path / "half.json").write_bytes(msgspec.json.encode([{**glet, "models": portions[:1]}]))
    (tmp_path / "d").mkdir()
    running = Deployed(tmp_path / "d", "--plan", str(tmp_path / "good.json")).ready()
    try:
        assert [one.glet.cycle_ms for one in running.status().glets] == [100.0]
        for name, line in (("bad", "C4"), ("half", "does not serve lstm")):
            command = ["serve", "run", str(tmp_path / "d"), "--plan", f"{tmp_path}/{name}.json"]
            told = subprocess.run(
                [sys.executable, "-m", "farside", *command],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert told.returncode == 2
            assert line in told.stderr, told.stderr
    finally:
        running.end()


@pytest.mark.long
def test_rates_that_do_not_fit_end_before_anything_starts(tmp_path: Path) -> None:
    running = Deployed(tmp_path, extra="gpus_max = 1", slo_ms=41)

    assert running.process.wait(60) == 2
    assert "does not fit on 1 device" in text_of(running.log)


@pytest.mark.long
def test_a_check_beside_the_front_that_runs_tells_a_mistake_and_ends_nothing(deployed: Deployed) -> None:
    def checked() -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "farside", "serve", "run", "--check", str(deployed.folder)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    pid = deployed.status().glets[0].pid
    file = deployed.folder / "serving.toml"
    sound = file.read_text()
    found = checked()
    assert found.returncode == 0, found.stderr
    for was, now, line in (
        (f"slo_ms = {SLO_MS}", "slo_ms = ", "serving.toml"),
        ("rate = 20", "rate = 900000", "does not fit on 1 device"),
        ('file = "mlp.onnx"', 'file = "absent.onnx"', "absent.onnx"),
    ):
        file.write_text(sound.replace(was, now))
        found = checked()
        assert found.returncode == 2, found.stderr
        assert line in found.stderr
    file.write_text(sound)

    assert deployed.status().glets[0].pid == pid
    assert deployed.end() == 0
