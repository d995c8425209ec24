"""``python -m benchmarks.colocation_groups``: two real jobs with a worker on each of two nodes, with turns and without.

Each node is a processor of this machine and a network namespace. A veth joins them, whose ends have tc's token
bucket: what a node sends meets on its one link. An Aggregator runs on each and has half of the sums; the executors form
a group. Otherwise it is `benchmarks.colocation`, with its cases and figures. Needs root and two processors.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.colocation import AGGREGATOR_PORT, Bench, Link, arguments, started, until_answers, write
from benchmarks.machine import this_machine
from farside.training.loop.turns import EXECUTOR
from farside.training.static_plan import KEY_FILE, SERVICE

RESULTS = Path(__file__).parent / "results" / "colocation_groups.json"
NODES = ("one", "two")
GROUP_PORT = 7690


def main() -> int:
    """Measures what is asked for, and writes it."""
    asked = arguments("Jobs that take turns on two nodes, measured.", RESULTS)
    processors = sorted(os.sched_getaffinity(0))
    if os.geteuid() != 0 or len(processors) < len(NODES):
        print(
            "farside: nodes with links of their own need root, and a processor each; nothing is measured",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was made is removed
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="farside-colo-") as folder, ExitStack() as stack:
        nodes = stack.enter_context(joined())
        bench = GroupBench(Path(folder), stack, nodes, processors[-len(NODES) :], iterations=asked.iterations)
        write(asked.output, "benchmarks.colocation_groups", machine, bench.measure(asked.rounds))
    return 0


class Node:
    """One node: its place in the group, its namespace and its address."""

    def __init__(self, number: int, namespace: str) -> None:
        self.number, self.namespace = number, namespace
        self.name, self.address = NODES[number], f"10.99.0.{number + 1}"

    def inside(self) -> tuple[str, ...]:
        """Words that begin a command there."""
        return ("ip", "netns", "exec", self.namespace)


@contextmanager
def joined() -> Iterator[list[Node]]:
    """Two namespaces with a link between them."""
    nodes = [Node(number, f"farside-bench-{os.getpid()}-{name}") for number, name in enumerate(NODES)]
    with ExitStack() as stack:
        for node in nodes:
            _ip("netns", "add", node.namespace)
            stack.callback(_ip, "netns", "delete", node.namespace)
        one, two = (node.namespace for node in nodes)
        _ip("link", "add", "link0", "netns", one, "type", "veth", "peer", "name", "link0", "netns", two)
        for node in nodes:
            _ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", "link0")
            for device in ("lo", "link0"):
                _ip("-n", node.namespace, "link", "set", device, "up")
        yield nodes


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class GroupBench(Bench):
    """Aggregators and a group of executors, and jobs that are started anew for each case."""

    machines = len(NODES)

    def __init__(
        self, folder: Path, stack: ExitStack, nodes: list[Node], processors: list[int], *, iterations: int
    ) -> None:
        self._nodes = nodes
        super().__init__(folder, stack, iterations=iterations, processors=processors)

    def _start_services(self, stack: ExitStack) -> None:
        self._link = _Ends(self._nodes)
        for node in self._nodes:
            config = self._folder / f"{node.name}.toml"
            config.write_text(
                f'node = "{node.name}"\nlisten = ["tcp:{node.address}:{AGGREGATOR_PORT}"]\n'
                f'key_file = "{self._key}"\nadmin_socket = "{self._folder}/{node.name}-a.sock"\nkeep_s = 1\n'
            )
            self._run(stack, node, "aggregator", "--config", config)
            where = f"{self._nodes[0].address}:{GROUP_PORT}"
            group: tuple[object, ...] = ("--synchronizer", where)
            if not node.number:
                group = ("--nodes", ",".join(NODES), "--group-listen", where)
            sockets = ("--socket", self._socket(node), "--admin-socket", self._admin(node))
            self._run(stack, node, "executor", "--node", node.name, "--key-file", self._key, *sockets, *group)
        for node in self._nodes:
            until_answers(self._folder / f"{node.name}-a.sock")
            until_answers(self._admin(node), lambda told: not told["is_apart"])

    def _services(self) -> Mapping[str, Sequence[Path]]:
        aggregators = [self._folder / f"{node.name}-a.sock" for node in self._nodes]
        return {"Aggregator": aggregators, "executor": [self._admin(node) for node in self._nodes]}

    def _run(self, stack: ExitStack, node: Node, *words: object) -> None:
        log = self._folder / f"{node.name}-{words[0]}.log"
        started(stack, [*node.inside(), sys.executable, "-m", "farside", *map(str, words)], log)

    def _socket(self, node: Node) -> Path:
        return self._folder / f"{node.name}.sock"

    def _admin(self, node: Node) -> Path:
        return self._folder / f"{node.name}.admin"

    @property
    def _shown_by(self) -> Path:
        """The executor whose trace is judged: jobs are ready to compute in the same order on all nodes."""
        return self._admin(self._nodes[0])

    @property
    def _executor(self) -> Path:
        return self._socket(self._nodes[0])

    def _workers(self, *, turns: bool) -> Iterator[tuple[list[str], Mapping[str, str]]]:
        service = ",".join(f"tcp:{node.address}:{AGGREGATOR_PORT}" for node in self._nodes)
        for node, processor in zip(self._nodes, self._processors, strict=True):
            variables: dict[str, Any] = {
                SERVICE: service, KEY_FILE: str(self._key), "RANK": str(node.number), "WORLD_SIZE": str(len(NODES)),
                "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            }  # fmt: skip
            if turns:
                variables[EXECUTOR] = str(self._socket(node))
            yield [*node.inside(), "taskset", "--cpu-list", str(processor)], variables


class _Ends(Link):
    """Both ends of the link."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    def shape(self, rate: int) -> None:
        """What each node may send, in bytes a second."""
        for node in self._nodes:
            self._set([*node.inside(), "tc"], "link0", rate)


if __name__ == "__main__":
    sys.exit(main())
