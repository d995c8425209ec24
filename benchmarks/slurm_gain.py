"""``python -m benchmarks.slurm_gain``: what a policy makes of a real Slurm, and what its shadow had expected.

The same jobs three times on a real Slurm of two nodes with four GPUs each: under Slurm's own backfill with the shadow
beside it; ordered by the policy; ordered, and with requeues. Jobs sleep for some seconds, so their lengths do not
depend on the machine; their time limits, of whole minutes, are longer in about the same proportion. From the shadow's
notes the gain is simulated that it would have told after all of them.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import this_command, this_commit, this_machine
from farside import admin
from farside.config import SlurmConfig, load_config
from farside.errors import FarsideError, PeerError
from farside.sandbox.process import command
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.slurm.commands import SlurmCommands
from farside.scheduler.slurm.domain import groups_of
from farside.scheduler.slurm.shadow import Gain, expected_gain
from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.snapshot import Snapshot
from farside.scheduler.slurm.state_file import StateFiles
from tests.slurm.cluster import SlurmCluster, slurm_cluster

RESULTS = Path(__file__).parent / "results" / "slurm_gain.json"
PARTITIONS = "PartitionName=gpu Nodes=gn[1-2] Default=YES MaxTime=INFINITE State=UP"
WAYS = (("shadow", "false"), ("run", "false"), ("run", "true"))
GAP_S = 0.15
LIMIT_S = 900.0
# A limit is at least a minute in Slurm.
LIMIT_MINUTES_FOR_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Averages of one run of the jobs, as the engine saw them end."""

    mode: str
    preempt: bool
    jobs: int
    wait_s: float
    completion_s: float


def drawn(count: int, seed: int) -> list[tuple[int, int]]:
    """(GPUs, seconds) of each job: two thirds short, one third ten times as long."""
    dice = random.Random(seed)
    return [(dice.choice([1, 1, 2, 4, 4]), dice.choice([3, 4, 5, 6, 30, 40])) for _ in range(count)]


def play(
    folder: Path, mode: str, preempt: str, policy: str, jobs: Sequence[tuple[int, int]]
) -> tuple[Outcome, Gain | None]:
    """The jobs on a Slurm of their own, and the gain that is expected after all of them.

    Raises:
        PeerError: They have not ended within the limit.
    """
    folder.mkdir()
    with slurm_cluster(folder, partitions=PARTITIONS) as cluster:
        told = {
            "partitions": "gpu", "policy": policy, "turn_s": "1", "min_run_s": "0", "preempt": preempt,
            "slurm_conf": str(folder / "slurm.conf"), "state_dir": str(folder / "notes"),
            "admin_socket": str(folder / "slurm.sock"),
        }  # fmt: skip
        config = load_config(SlurmConfig, (), {**told, "turn_s": 1, "min_run_s": 0, "preempt": preempt == "true"})
        settings = [word for name, value in told.items() for word in ("--set", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            engine = subprocess.Popen(command("slurm", mode, *settings), stderr=log)
            try:
                _submit_all(cluster, config, jobs)
                snapshot = _look(config)
            finally:
                engine.terminate()
                engine.wait(30)
        ended = StateFiles(config.state_dir).ended()
        groups = groups_of(snapshot.partitions, ["gpu"])
        gain = expected_gain(
            ended.values(), groups, snapshot, rules_of(config), may_preempt=config.preempt,
            requeue_cost_s=config.requeue_cost_s, is_gating=config.gate,
        )  # fmt: skip
        return _outcome(mode, config.preempt, list(ended.values())), gain


def _submit_all(cluster: SlurmCluster, config: SlurmConfig, jobs: Sequence[tuple[int, int]]) -> None:
    begun_s = time.monotonic()
    while _turns(config) < 1:
        _pause(begun_s, 0.2)
    for gpus, seconds in jobs:
        limit = max(1, seconds // LIMIT_MINUTES_FOR_S)
        cluster.submit(f"--gres=gpu:{gpus}", f"--time={limit}", script=f"sleep {seconds}")
        time.sleep(GAP_S)
    while cluster.say("squeue", "--noheader"):
        _pause(begun_s, 0.5)
    seen = _turns(config)
    while _turns(config) < seen + 2:
        _pause(begun_s, 0.2)


def _pause(begun_s: float, seconds: float) -> None:
    if time.monotonic() - begun_s > LIMIT_S:
        raise PeerError(f"the jobs have not ended in {LIMIT_S:g} s")
    time.sleep(seconds)


def _turns(config: SlurmConfig) -> int:
    try:
        return int(admin.call(config.admin_socket, "status")["turns"])
    except PeerError:
        return 0


def _look(config: SlurmConfig) -> Snapshot:
    return asyncio.run(SlurmCommands(config.slurm_conf, config.command_limit_s).look())


def _outcome(mode: str, preempt: bool, ended: Sequence[Ended]) -> Outcome:
    count = len(ended)
    return Outcome(
        mode=mode,
        preempt=preempt,
        jobs=count,
        wait_s=sum(one.end_s - one.submit_s - one.held_s for one in ended) / count,
        completion_s=sum(one.end_s - one.submit_s for one in ended) / count,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm_gain", description=__doc__)
    parser.add_argument("--policy", default="srsf", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--output", metavar="FILE", default=str(RESULTS), help="default: %(default)s")
    options = parser.parse_args(arguments)
    jobs = drawn(options.jobs, options.seed)
    outcomes: list[Outcome] = []
    gains: list[Gain | None] = []
    with tempfile.TemporaryDirectory(prefix="gain-") as folder:
        try:
            for at, (mode, preempt) in enumerate(WAYS):
                outcome, gain = play(Path(folder) / str(at), mode, preempt, options.policy, jobs)
                outcomes.append(outcome)
                gains.append(gain)
                averages = f"waiting {outcome.wait_s:.1f} s, to the end {outcome.completion_s:.1f} s"
                print(f"{mode}, preempt {preempt}: {averages}")
        except FarsideError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return error.exit_code
    if gains[0] is not None:
        for means in (gains[0].control, gains[0].policy):
            print(f"expected by the shadow, {means.name}: {means.wait_s:.1f} s, {means.completion_s:.1f} s")
    told = {
        "command": this_command("benchmarks.slurm_gain"), "commit": this_commit(), "machine": asdict(this_machine()),
        "policy": options.policy, "seed": options.seed,
        "outcomes": [asdict(one) for one in outcomes], "expected": asdict(gains[0]) if gains[0] else None,
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(told, indent=1) + "\n")
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
