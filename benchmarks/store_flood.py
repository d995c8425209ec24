"""``python -m benchmarks.store_flood``: what others feel while a user and a node try to fill a manager's store.

Starts `farside manager` with an empty store and simulated agents (`manager_agents.py`). Users submit, look at a job and
list their own at a steady rate; jobs run and end. That is measured in turns: alone, and while a user and a node at once
do what `store_flood_attack.py` does, each for a minute, with names of their own in each turn, as a user and a node that
have been refused already can do less. Latency counts from when a request was due. The clients of users and agents take
their part of this machine; those of the attack would be other machines, and get only what is left of it.

What the store grew by is the database's file, after its write-ahead log has been moved into it, less what it grew by
alone. The command ends with 1 where a bar is missed.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.manager_agents import Fleet, name_of
from benchmarks.process import free_port, process
from benchmarks.render import table
from benchmarks.serving.machine_noise import noise, snapshot
from benchmarks.store_flood_attack import Attack
from farside.client.manager_client import ManagerAddress, ManagerClient
from farside.errors import FarsideError
from farside.sandbox.waiting import wait_until
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.scheduler.manager.store.event_store import EventStore

RESULTS = Path(__file__).parent / "results" / "store_flood.json"
RATIO_MOST, GROWTH_MOST_BYTES = 1.2, 5e6
START_LIMIT_S = 120.0
GPUS = 8  # of a node
USERS = ("ann", "bob", "eve", "joe")
# What users ask, and how often of a hundred times.
ASKED: Mapping[str, int] = {"show": 50, "list": 25, "submit": 25}
# After a turn: what was under way ends, and the write-ahead log is moved, which the manager does once a second.
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one minute was: latencies of others' requests by kind, and how much the store grew.

    ``done``: what the attackers were let, and refused; empty: nobody attacked. ``log_bytes``: what the manager said on
    its stderr. ``steal``, ``busy``: shares of the machine that its host took, and that everything on it used.
    """

    is_attacked: bool
    latencies_ms: Mapping[str, Sequence[float]]
    growth_bytes: int
    log_bytes: int
    done: Mapping[str, Mapping[str, int]]
    steal: float
    busy: float

    @property
    def all_ms(self) -> list[float]:
        """Latencies of all kinds."""
        return [ms for kind in self.latencies_ms.values() for ms in kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians over turns: milliseconds alone and under attack, their ratio, and what the attack put into the store."""

    alone_p50_ms: float
    alone_p99_ms: float
    attacked_p50_ms: float
    attacked_p99_ms: float
    ratio_p50: float
    ratio_p99: float
    growth_bytes: float

    @property
    def missed(self) -> list[str]:
        """Bars that are missed, in words."""
        found = []
        if self.ratio_p99 > RATIO_MOST:
            found.append(f"others' p99 is {self.ratio_p99:.2f} times what it is alone, at most {RATIO_MOST} is the bar")
        if self.growth_bytes > GROWTH_MOST_BYTES:
            found.append(f"the store grew by {self.growth_bytes / 1e6:.1f} MB, at most {GROWTH_MOST_BYTES / 1e6:.0f}")
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    options = _parse(arguments)
    machine, commit = this_machine(), this_commit()
    try:
        turns = _measure(options)
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    found = figures_of(turns)
    _say(turns, found)
    told = {
        "command": this_command("benchmarks.store_flood"), "commit": commit, "machine": asdict(machine),
        "nodes": options.nodes, "rate": options.rate, "seconds": options.seconds, "figures": asdict(found),
        "turns": [_summary(turn) for turn in turns],
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(told, indent=1) + "\n")
    print(f"wrote {options.output}")
    for line in found.missed:
        print(f"missed: {line}")
    return 1 if found.missed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_flood", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="turns alone, and as many attacked; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each turn; default: %(default)s")
    parser.add_argument("--nodes", type=int, default=100, help="of eight GPUs each; default: %(default)s")
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second, all users; default: %(default)s")
    parser.add_argument("--run", type=float, default=60.0, help="mean seconds that a job runs; default: %(default)s")
    parser.add_argument("--attackers", default="user,node", help="which of: %(default)s")
    parser.add_argument("--output", metavar="FILE", default=str(RESULTS), help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        parser.error("--pairs: at least one")
    if set(options.attackers.split(",")) - {"user", "node"}:
        parser.error("--attackers: user, node, or both with a comma between")
    return options


# ---------------------------------------------------------------------------------------------------- what comes of it


def figures_of(turns: Sequence[Turn]) -> Figures:
    """The medians of turns, some alone and some attacked; a ratio is that of medians."""

    def middle(share: float, *, is_attacked: bool) -> float:
        return statistics.median(at_share(one.all_ms, share) for one in turns if one.is_attacked == is_attacked)

    def growth(*, is_attacked: bool) -> float:
        return statistics.median(one.growth_bytes for one in turns if one.is_attacked == is_attacked)

    alone = [middle(share, is_attacked=False) for share in (0.5, 0.99)]
    attacked = [middle(share, is_attacked=True) for share in (0.5, 0.99)]
    return Figures(
        alone_p50_ms=alone[0], alone_p99_ms=alone[1], attacked_p50_ms=attacked[0], attacked_p99_ms=attacked[1],
        ratio_p50=attacked[0] / alone[0], ratio_p99=attacked[1] / alone[1],
        growth_bytes=growth(is_attacked=True) - growth(is_attacked=False),
    )  # fmt: skip


def at_share(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _summary(turn: Turn) -> Mapping[str, object]:
    kinds = {**turn.latencies_ms, "all": turn.all_ms}
    return {
        "is_attacked": turn.is_attacked,
        "latencies": {
            kind: {"requests": len(ms), "p50_ms": at_share(ms, 0.5), "p99_ms": at_share(ms, 0.99), "most_ms": max(ms)}
            for kind, ms in kinds.items()
            if ms
        },
        "growth_bytes": turn.growth_bytes, "log_bytes": turn.log_bytes, "done": turn.done, "steal": turn.steal,
        "busy": turn.busy,
    }  # fmt: skip


def _say(turns: Sequence[Turn], found: Figures) -> None:
    rows = [
        (
            "attacked" if one.is_attacked else "alone", f"{len(one.all_ms)}", f"{at_share(one.all_ms, 0.5):.1f}",
            f"{at_share(one.all_ms, 0.99):.1f}", f"{max(one.all_ms):.1f}", f"{one.growth_bytes / 1e6:.2f}",
            f"{one.log_bytes / 1e3:.1f}", f"{one.busy:.0%}", f"{one.steal:.0%}",
        )
        for one in turns
    ]  # fmt: skip
    head = ("turn", "requests", "median ms", "p99 ms", "longest ms", "store MB", "log KB", "busy", "stolen")
    print(table(head, rows))
    for one in turns:
        for kind, done in one.done.items():
            print(f"{kind}: " + ", ".join(f"{count:,} {what}" for what, count in sorted(done.items())))
    print(
        f"others' p50 {found.alone_p50_ms:.1f} ms alone, {found.attacked_p50_ms:.1f} attacked ({found.ratio_p50:.2f}); "
        f"p99 {found.alone_p99_ms:.1f} and {found.attacked_p99_ms:.1f} ms ({found.ratio_p99:.2f}, bar {RATIO_MOST}); "
        f"the attack put {found.growth_bytes / 1e6:.2f} MB into the store (bar {GROWTH_MOST_BYTES / 1e6:.0f})"
    )


# ---------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """The manager that is measured."""

    folder: Path
    port: int
    store: EventStore
    tokens: Mapping[str, str]  # of users
    kinds: Sequence[str]  # of attackers

    def token(self, name: str, role: Role) -> str:
        return add_token(self.folder / "tokens.toml", name, role)

    @property
    def log_bytes(self) -> int:
        return (self.folder / "manager.log").stat().st_size

    def store_bytes(self) -> int:
        """Size of the database's file, with all that was committed."""
        self.store.checkpoint()
        return (self.folder / "manager.db").stat().st_size


def _measure(options: argparse.Namespace) -> list[Turn]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farside-flood-")))
        bench = stack.enter_context(_manager(folder, options.attackers.split(",")))
        stack.enter_context(_agents(bench, options))
        client = stack.enter_context(ManagerClient(ManagerAddress(endpoint=f"unix:{folder}/manager.sock")))
        wait_until(
            lambda: len(client.get("nodes")["nodes"]) == options.nodes, "all agents to join", limit_s=START_LIMIT_S
        )
        # Until jobs end as often as they come, and what is read at a start has been.
        _asked(bench, options.rate, min(options.seconds, options.run))
        turns = []
        for pair in range(options.pairs):
            for is_attacked in (False, True) if pair % 2 == 0 else (True, False):
                turns.append(_turn(bench, options, f"{pair}" if is_attacked else ""))
                word, p99_ms = ("attacked" if is_attacked else "alone"), at_share(turns[-1].all_ms, 0.99)
                print(f"{word}: p99 {p99_ms:.1f} ms", flush=True)
        return turns


def _turn(bench: _Bench, options: argparse.Namespace, attacked: str) -> Turn:
    """One minute. ``attacked``: a word of its own for the attackers' names; empty: there are none."""
    grown_bytes, said_bytes, before = bench.store_bytes(), bench.log_bytes, snapshot()
    attackers = {kind: _attacker(bench, kind, f"{kind}{attacked}", options.seconds) for kind in bench.kinds if attacked}
    try:
        latencies_ms = _asked(bench, options.rate, options.seconds)
        after = noise(before, snapshot(), 0.0)
        done = {kind: json.loads(one.communicate(timeout=60)[0] or "{}") for kind, one in attackers.items()}
    finally:
        for one in attackers.values():
            one.kill()
            one.wait()
    time.sleep(SETTLE_S)
    return Turn(
        is_attacked=bool(attacked), latencies_ms=latencies_ms, growth_bytes=bench.store_bytes() - grown_bytes,
        log_bytes=bench.log_bytes - said_bytes, done=done, steal=after.steal, busy=after.foreign,
    )  # fmt: skip


def _attacker(bench: _Bench, kind: str, name: str, seconds: float) -> "subprocess.Popen[str]":
    role = Role.USER if kind == "user" else Role.NODE
    attack = Attack(kind=role.value, name=name, token=bench.token(name, role), port=bench.port, seconds=seconds)  # type: ignore[arg-type]
    told = msgspec.json.encode(attack).decode()
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.store_flood_attack", told], stdout=subprocess.PIPE, text=True
    )


@contextmanager
def _manager(folder: Path, kinds: Sequence[str]) -> Iterator[_Bench]:
    port = free_port()
    tokens = {name: add_token(folder / "tokens.toml", name, Role.USER) for name in USERS}
    told: Mapping[str, object] = {
        "listen": json.dumps([f"unix:{folder}/manager.sock", f"tcp:127.0.0.1:{port}"]),
        "store_url": f"sqlite:///{folder}/manager.db",
        "state_dir": folder / "m",
        "tokens_file": folder / "tokens.toml",
        "policy": "las",
        "run_as": "starter",  # so that users of this machine may come by tokens
        "token_submit": "true",
        "log_level": "info",
    }
    settings = [part for name, value in told.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "farside", "manager", "-c", "/dev/null", *settings]
    address = ManagerAddress(endpoint=f"unix:{folder}/manager.sock")
    with process(command, folder / "manager.log", lambda: _leads(address)):
        store = EventStore(f"sqlite:///{folder}/manager.db")
        try:
            yield _Bench(folder=folder, port=port, store=store, tokens=tokens, kinds=kinds)
        finally:
            store.close()


def _leads(address: ManagerAddress) -> bool:
    try:
        with ManagerClient(address) as client:
            return int(client.get("health")["generation"]) > 0
    except (FarsideError, OSError):
        return False


@contextmanager
def _agents(bench: _Bench, options: argparse.Namespace) -> Iterator[None]:
    tokens = bench.folder / "agents.json"
    names = [name_of(at) for at in range(options.nodes)]
    tokens.write_text(json.dumps({name: bench.token(name, Role.NODE) for name in names}))
    fleet = Fleet(
        url=f"ws://127.0.0.1:{bench.port}", tokens=str(tokens), first=0, nodes=options.nodes, gpus=GPUS,
        mean_run_s=options.run,
    )  # fmt: skip
    one = subprocess.Popen([sys.executable, "-m", "benchmarks.manager_agents", json.dumps(asdict(fleet))])
    try:
        yield
    finally:
        one.kill()
        one.wait()


# ---------------------------------------------------------------------------------------------------- others


def _asked(bench: _Bench, rate: float, seconds: float) -> Mapping[str, Sequence[float]]:
    """Milliseconds of each kind of request, of users that ask at this rate, all together, for so long."""
    end_s = time.monotonic() + seconds
    with ThreadPoolExecutor(len(USERS)) as pool:
        users = [pool.submit(_user, bench, name, rate / len(USERS), end_s) for name in USERS]
        found = [one.result() for one in users]
    return {kind: [ms for one in found for other, ms in one if other == kind] for kind in ASKED}


def _user(bench: _Bench, name: str, rate: float, end_s: float) -> list[tuple[str, float]]:
    chance, found, own = random.Random(name), list[tuple[str, float]](), ""
    head = {"Authorization": f"Bearer {bench.tokens[name]}", "Content-Type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", bench.port, timeout=60)) as connection:
        due_s = time.monotonic()
        while (due_s := due_s + chance.expovariate(rate)) < end_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            (kind,) = chance.choices(list(ASKED), list(ASKED.values())) if own else ("submit",)
            own = _request(connection, head, kind, own) or own
            found.append((kind, (time.monotonic() - due_s) * 1e3))
    return found


def _request(connection: HTTPConnection, head: Mapping[str, str], kind: str, job: str) -> str:
    """The id of a job that was submitted; empty: none was."""
    if kind == "submit":
        connection.request("POST", "/v1/jobs", json.dumps({"argv": ["true"], "gpus": 1}), dict(head))
    else:
        connection.request("GET", f"/v1/jobs/{job}" if kind == "show" else "/v1/jobs", headers=dict(head))
    response = connection.getresponse()
    text = response.read()
    if response.status >= 400:
        raise FarsideError(f"{kind}: {response.status} {text[:200].decode()}")
    return str(json.loads(text)["ids"][0]) if kind == "submit" else ""


if __name__ == "__main__":
    sys.exit(main())
