"""The command `farside demo`: both planes on this machine, under load and faults.

Three donors are squeezed, killed and replaced under a borrower; then a manager with four agents runs the same jobs
under two policies (cluster.py).

Everything runs for real, in processes of its own: the sandbox's donors and borrower over TCP, fio and nbdcopy as
clients. Only the memory use of the donors' own programs is pretended (see `farside.sandbox.pressure`).
"""

import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from rich.console import Console

from farside.cli.demo import load
from farside.cli.demo.act import ACTS, Stage
from farside.cli.demo.load import FioLoad, Tally
from farside.cli.demo.report import VERIFIED_MIN_BYTES, Outcome, faults
from farside.cli.demo.show import Show, print_outcome
from farside.errors import ConfigError, FarsideError, Unavailable
from farside.sandbox.session import open_sandbox
from farside.units import format_bytes

Scene = Literal["all", "memory", "cluster", "aggregation", "serving", "serving-cluster", "colocation", "live"]
"""What `farside demo --scene` takes; "all" are the two that need no other packages."""
SANDBOX = ("--donors", "3", "--donor-memory", "512MiB", "--transport", "tcp", "--size", "1GiB")
PROGRAMS = {"fio": "fio", "nbdcopy": "libnbd-bin", "nbdkit": "nbdkit", "cmp": "diffutils"}
# When all acts are over and not enough is verified yet, the clients go on for at most so long.
PATIENCE_S = 30.0


def run(*, state: Path | None = None, part: Scene = "all", log: Path | None = None) -> int:
    """Runs the demo in `state` or a temporary folder; exit code 0 if every step worked, otherwise 1.

    Raises:
        ConfigError: `log` is given, and the scene plays none.
        FarsideError: a program is missing, or the sandbox did not start.
    """
    console = Console()
    if log is not None and part != "live":
        raise ConfigError(f"--log: the scene {part} plays no log", hint="add --scene live")
    if part == "live":
        return _live(console, log)
    if part == "aggregation":
        return _aggregation(console)
    if part == "serving":
        return _serving(console)
    if part == "serving-cluster":
        return _serving_cluster(console)
    if part == "colocation":
        return _colocation(console)
    status = 0
    if part != "cluster":
        # Both parts are played, also when the first fails.
        status |= _memory(console, state)
    if part != "memory":
        status |= _cluster(console)
    return status


def _aggregation(console: Console) -> int:
    # Late: neither of the other scenes needs it.
    from farside.cli.demo.shared import play
    from farside.cli.demo.shared_report import print_peers, print_scene, scene_faults

    with tempfile.TemporaryDirectory(prefix="farside-demo-") as spare, Show(console, lambda: "") as show:
        scene = play(show, Path(spare))
    print_scene(console, scene)
    return print_peers(console) | (1 if scene_faults(scene) else 0)


def _serving(console: Console) -> int:
    # Late: no other scene needs it.
    from farside.cli.demo.serving import play
    from farside.cli.demo.serving_report import print_scene

    with tempfile.TemporaryDirectory(prefix="farside-demo-") as spare, Show(console, lambda: "") as show:
        scene = play(show, Path(spare))
    return print_scene(console, scene)


def _serving_cluster(console: Console) -> int:
    from farside.cli.demo.serving_cluster import play
    from farside.cli.demo.serving_report import print_cluster_scene

    with tempfile.TemporaryDirectory(prefix="farside-demo-") as spare, Show(console, lambda: "") as show:
        scene = play(show, Path(spare))
    return print_cluster_scene(console, scene)


def _colocation(console: Console) -> int:
    # Late: no other scene needs it.
    from farside.cli.demo.colocated import play
    from farside.cli.demo.colocated_managed import play as play_managed
    from farside.cli.demo.colocated_report import print_managed, print_scene

    with tempfile.TemporaryDirectory(prefix="farside-demo-") as spare, Show(console, lambda: "") as show:
        scene = play(show, Path(spare))
        managed = play_managed(show, Path(spare) / "managed")
    return print_scene(console, scene) | print_managed(console, managed)


def _live(console: Console, log: Path | None) -> int:
    # Late: no other scene needs it.
    from farside.cli.demo.live.report import print_scene
    from farside.cli.demo.live.scene import play

    told = [""]
    with tempfile.TemporaryDirectory(prefix="farside-demo-") as spare, Show(console, lambda: told[-1]) as show:
        scene = play(show, Path(spare), log, told.append)
    return print_scene(console, scene)


def _cluster(console: Console) -> int:
    # Late: the memory plane's half needs none of it.
    from farside.cli.demo.cluster import play
    from farside.cli.demo.cluster_jobs import demo_jobs
    from farside.cli.demo.cluster_report import print_scene, scene_faults

    with tempfile.TemporaryDirectory(prefix="farside-demo-") as spare, Show(console, lambda: "") as show:
        scene = play(show, Path(spare), demo_jobs())
    print_scene(console, scene)
    return 1 if scene_faults(scene) else 0


def _memory(console: Console, state: Path | None) -> int:
    _need_programs()
    with tempfile.TemporaryDirectory(prefix="farside-demo-") as spare:
        folder = Path(spare)
        data = folder / "data"
        data.write_bytes(secrets.token_bytes(load.COPY_BYTES))
        # A list, as the line of the display is drawn before fio starts and reads it from there.
        fio: list[FioLoad] = []
        with Show(console, lambda: _verified(fio[0].tally if fio else Tally())) as show:
            show.begin("three donors and a borrower start")
            with open_sandbox(SANDBOX, state=state or folder / "state") as sandbox:
                stage = Stage(sandbox.state)
                stage.until_up()
                show.end(f"clients connect to {sandbox.uri}")
                fio.append(FioLoad(sandbox.uri, folder))
                found = _play(show, stage, fio[0], data)
    print_outcome(console, found)
    return 1 if faults(found) else 0


def _verified(tally: Tally) -> str:
    return f"{format_bytes(tally.verified_bytes)} verified, no wrong byte"


def _play(show: Show, stage: Stage, fio: FioLoad, data: Path) -> Outcome:
    complaint, copied = "", Tally()
    fio.start()
    try:
        show.begin("nbdcopy writes")
        copied = load.copy_in(fio.uri, data)
        show.end(f"{format_bytes(load.COPY_BYTES)} of random data")
        # fio runs through all of the acts; each returns when its effect has been seen.
        for title, act in ACTS.items():
            show.begin(title)
            show.end(act(stage))
        show.begin("nbdcopy reads back")
        copied = copied.plus(load.copy_back_and_compare(fio.uri, data))
        show.end("not one byte differs")
        show.begin("fio goes on until enough is verified")
        fio.wait_until_verified(VERIFIED_MIN_BYTES - copied.verified_bytes, limit_s=PATIENCE_S)
        show.end(format_bytes(fio.tally.verified_bytes + copied.verified_bytes))
    except FarsideError as error:
        complaint = str(error)
        show.end(complaint, is_good=False)
    finally:
        tally = fio.stop().plus(copied)
    # The borrower's counters, before the sandbox ends with them.
    last = stage.status()
    took_s = show.took_s
    show.begin("the sandbox ends")
    return Outcome(
        tally=tally,
        counters=last["counters"],
        pages_in=last["pages_in"],
        pages_out=last["pages_out"],
        took_s=took_s,
        complaint=complaint,
    )


def _need_programs() -> None:
    missing = {program: package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)}", hint=f"apt install {' '.join(missing.values())}")
