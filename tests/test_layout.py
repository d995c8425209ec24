"""The shape of the tree: links, tools' lists, and who may import whom."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.imports import SOURCE, imported_anywhere, imported_at_start, modules, tree

ROOT = Path(__file__).parents[1]

# Decisions without side effects: see CONTRIBUTING.md, "functional core". All of the scheduler is, but what reads and
# writes files for the simulator.
SCHEDULER_SHELL = (
    "farside.scheduler.sim.characterise.report",
    "farside.scheduler.power.driver",
    "farside.scheduler.power.controller",
    "farside.scheduler.sim.output_files",
    "farside.scheduler.sim.trace.format",
    "farside.scheduler.sim.trace.row_problems",
    "farside.scheduler.sim.trace.read",
    "farside.scheduler.sim.trace.write",
    "farside.scheduler.sim.result.write",
    "farside.scheduler.sim.result.report",
    "farside.scheduler.sim.energy.read_series",
    "farside.scheduler.predict.model_files",
    "farside.scheduler.predict.fit_process",
    "farside.scheduler.manager.api",
    "farside.scheduler.manager.decider.scheduler_process",
    "farside.scheduler.manager.log_follower",
    "farside.scheduler.manager.garbage_collection",
    "farside.scheduler.manager.main",
    "farside.scheduler.manager.named_files",
    "farside.scheduler.sim.learned_before",
    "farside.scheduler.manager.nodes.sessions",
    "farside.scheduler.manager.nodes.agent_connection",
    "farside.scheduler.manager.nodes.agent_socket",
    "farside.scheduler.manager.nodes.checkpoint_folder",
    "farside.scheduler.manager.auth",
    "farside.scheduler.manager.processes",
    "farside.scheduler.manager.scheduler_watch",
    "farside.scheduler.energy.holidays",
    "farside.scheduler.power.fit_thread",
    "farside.scheduler.manager.power.inventory",
    "farside.scheduler.manager.power.controller",
    "farside.scheduler.power.rules",
    "farside.scheduler.manager.power.check_setup",
    "farside.scheduler.slurm.check_settings",
    "farside.scheduler.slurm.commands",
    "farside.scheduler.slurm.engine",
    "farside.scheduler.slurm.state_file",
    "farside.scheduler.slurm.power",
    "farside.scheduler.slurm.shadow_log",
    "farside.scheduler.manager.store",
    "farside.scheduler.manager.log_wakeup",
    "farside.scheduler.manager.wall_clock",
)
PURE = (
    *(f"farside.agent.aggregator.{name}" for name in ("door", "layout", "plan")),
    "farside.agent.gpu_files",
    "farside.agent.gpu_share",
    "farside.agent.serving.partition.granules",
    "farside.agent.messages",
    "farside.agent.protocol",
    "farside.agent.backoff",
    "farside.agent.mutual_proof",
    "farside.agent.outbox",
    "farside.agent.peering",
    "farside.agent.relay_protocol",
    *(
        f"farside.agent.profile.{name}"
        for name in [
            "any_order",
            "chain",
            "in_order",
            "iteration",
            "message",
            "pause",
            "ring",
            "summarise",
            "task",
            "window",
        ]
    ),
    *(f"farside.agent.serving.{name}" for name in ("frames", "life", "model_file", "partition.policy", "wire")),
    "farside.agent.training.alpha",
    "farside.agent.training.link",
    "farside.agent.training.messages",
    "farside.agent.training.subtask",
    "farside.agent.training.turn_record",
    "farside.agent.training.node_queue",
    "farside.agent.training.synchronizer",
    "farside.agent.rest.rules",
    "farside.agent.run.environment",
    "farside.agent.run.ready_lines",
    "farside.agent.run.ledger",
    "farside.agent.run.task_memory",
    "farside.agent.sense.growth",
    "farside.agent.sense.headroom",
    "farside.agent.sense.load_history",
    "farside.agent.service.memory_rules",
    "farside.agent.service.swap_plan",
    "farside.daemon.control.protocol",
    "farside.daemon.control.messages",
    "farside.daemon.headroom",
    "farside.daemon.slab.eviction",
    "farside.blockdev.client.handshake",
    "farside.blockdev.mapping.activity",
    "farside.blockdev.mapping.placement",
    "farside.blockdev.carrier.choice",
    "farside.blockdev.donor.trust",
    "farside.blockdev.mapping.migration",
    "farside.config.check",
    "farside.config.hostlist",
    *(f"farside.serve.{name}" for name in ("description", "failures", "inference", "queues")),
    "farside.serve.large.message",
    *(f"farside.serve.http1.{name}" for name in ("answer", "connection")),
    *(f"farside.serve.http2.{name}" for name in ("budget", "call", "connection", "frame", "head", "sender")),
    "farside.kmod_shim.nbd.message",
    "farside.proof",
    *(
        name
        for name in sorted(modules())
        if name.startswith("farside.scheduler") and not name.startswith(SCHEDULER_SHELL)
    ),
)
# What a pure module may import besides other pure ones.
PLAIN = {
    f"farside.{name}"
    for name in (
        "errors", "units", "geometry", "group_time", "endpoint", "config.daemon", "config.blockdev", "config.agent",
        "config.manager", "config.shared", "config.slurm", "config.aggregator",
    )
}  # fmt: skip
IMPURE = {
    "asyncio", "ctypes", "datetime", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip

# Lower may not import higher.
FOUNDATION = (
    "errors", "units", "geometry", "group_time", "ending", "endpoint", "clock", "installed", "kernel_file", "log",
    "listen", "memory_sense", "notify", "own_task", "http_header", "munge", "proof", "scrape", "tls",
    "whole_file", "admin", "config",
)  # fmt: skip
COMPONENTS = ("agent", "blockdev", "daemon", "scheduler")
# A protocol is one codec for both roles; its folder is that of the side it was written for first.
SHARED_PROTOCOL = {
    *(f"farside.daemon.control.{name}" for name in ("protocol", "messages", "keys", "channel")),
    *(f"farside.agent.{name}" for name in ("protocol", "messages", "gpu_share", "mutual_proof")),
    *(f"farside.agent.aggregator.{name}" for name in ("layout", "plan")),
    *(f"farside.agent.training{name}" for name in ("", ".subtask", ".node_queue", ".synchronizer")),
}


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def component_folders() -> set[str]:
    not_components = {"tests", "benchmarks", "src", "build"}
    return {path.parent.name for path in ROOT.glob("*/__init__.py")} - not_components


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def rank(module: str) -> int:
    if room(module) in FOUNDATION:
        return 0
    if room(module) == "kmod_shim":
        return 1
    return 2 if room(module) in COMPONENTS else 3


def test_each_component_folder_is_linked_into_the_package() -> None:
    links = {path.name: path.readlink() for path in (SOURCE / "farside").iterdir() if path.is_symlink()}

    assert links == {name: Path("../..") / name for name in component_folders()}


def test_pyright_is_told_every_link() -> None:
    included = set(pyproject()["tool"]["pyright"]["include"])

    assert included >= {f"src/farside/{name}" for name in component_folders()}


def test_ruff_bans_the_second_name_of_every_component() -> None:
    banned = pyproject()["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]

    assert set(banned) == component_folders()


def test_the_folder_of_units_is_no_package() -> None:
    assert not (ROOT / "systemd" / "__init__.py").exists()


def test_folders_of_later_work_say_what_will_live_there() -> None:
    for name in ("agent", "scheduler", "systemd", "vagrant"):
        assert (ROOT / name / "README.md").is_file()


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {name: {other for other in imported_at_start(name) if other in modules()} for name in modules()}

    assert list(cycles(graph)) == []


def cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> Iterator[list[str]]:
        if name in path:
            yield path[path.index(name) :]
        elif name not in done:
            for other in sorted(graph[name] - {name}):
                yield from visit(other, [*path, name])
            done.add(name)

    for start in sorted(graph):
        yield from visit(start, [])


def test_a_core_module_touches_nothing() -> None:
    allowed = {*PURE, *PLAIN}

    def touched(module: str) -> list[str]:
        imported = imported_anywhere(module)
        impure = {name for name in imported if name.split(".")[0] in IMPURE}
        beyond = {name for name in imported if name.startswith("farside")} - allowed
        return [*sorted(impure), *sorted(beyond), *impure_uses(tree(module))]

    assert {module: found for module in PURE if (found := touched(module))} == {}


def test_a_module_that_calls_itself_pure_is_held_to_it() -> None:
    candidates = {name for name in modules() if room(name) in COMPONENTS}
    claiming = {name for name in candidates if re.search(r"\bpure\b", first_line(name), re.IGNORECASE)}

    assert claiming <= set(PURE)


def first_line(module: str) -> str:
    return (ast.get_docstring(tree(module)) or "").split("\n", 1)[0]


def impure_uses(node: ast.Module) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "random":
            # chance is an argument, and only its type is named
            if part.attr != "Random":
                yield f"line {part.lineno}: random.{part.attr}"
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in ("open", "print"):
            yield f"line {part.lineno}: {part.func.id}()"
        elif isinstance(part, ast.Call) and getattr(part.func, "attr", getattr(part.func, "id", "")) == "Random":
            yield f"line {part.lineno}: makes its own chance"


def test_imports_run_one_way() -> None:
    def wrong_way(module: str) -> list[str]:
        others = {name for name in imported_anywhere(module) if name in modules() and room(name)}
        upwards = {name for name in others if rank(name) > rank(module)}
        across = {
            name
            for name in others
            if rank(name) == rank(module) == 2 and room(name) != room(module) and name not in SHARED_PROTOCOL
        }
        return sorted(upwards | across)

    assert {module: found for module in modules() if (found := wrong_way(module))} == {}


def test_one_module_only_reads_versions_of_what_is_installed() -> None:
    """Elsewhere a source tree without metadata ended programs."""

    def reads(name: str) -> bool:
        return any(other.startswith("importlib.metadata") for other in compiled_imports(name))

    readers = {name for name in modules() if reads(name)}

    assert readers == {"farside.installed"}


def test_one_module_only_knows_the_compiled_engine() -> None:
    importers = {name for name in modules() if any("_ffi" in other for other in compiled_imports(name))}

    assert importers == {"farside.kmod_shim.engine.binding"}


def compiled_imports(name: str) -> Iterator[str]:
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "build_ffi")
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
