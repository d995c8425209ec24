"""Which tests run side by side under pytest-xdist, which stay together, and which begin first.

The tests of one file stay in one worker, with what they share. `APART`, `TOGETHER` and `FIRST` are the exceptions.
"""

from xdist.scheduler.loadscope import LoadScopeScheduling

# Files of slow tests that share nothing: each test goes to the worker that is free next.
APART = frozenset(
    {
        "tests/blockdev/test_fd_store.py",
        "tests/blockdev/test_process.py",
        "tests/cli/test_sim.py",
        "tests/fuzz/test_fuzz_codecs.py",
        "tests/live/test_manager_process.py",
        "tests/live/test_versions_processes.py",
    }
)
# Folders and files that one worker runs, one test after the other, by what they share.
TOGETHER = {
    "tests/vm/": "guests",  # an emulated guest takes a core; image and payload are made once
    "tests/interop/": "interop",  # a sandbox for each transport, started once
}
# What takes longest, so that nothing long is left when all else has ended; `--durations=50` tells. The rest keeps its
# order.
FIRST = (
    "tests/vm/",
    "tests/web/",
    "tests/power/test_power_manager.py",
    "tests/live/test_api_contract.py",
    "tests/live/test_manager_process.py",
    "tests/sandbox/",
    "tests/live/test_cut_node.py",
    "tests/power/",
    "tests/property/",
    "tests/predict/",
    "tests/fault/",
    "tests/blockdev/test_process.py",
    "tests/blockdev/test_fd_store.py",
    "tests/energy/",
    "tests/live/test_versions_processes.py",
    "tests/interop/",
    "tests/aggregation/",
    "tests/cli/test_sim.py",
)


def unit(nodeid: str) -> str:
    """What is given to a worker as one: a file, a group of `TOGETHER`, or a single test of `APART`."""
    file = nodeid.partition("::")[0]
    if file in APART:
        return nodeid
    return next((name for start, name in TOGETHER.items() if file.startswith(start)), file)


def rank(nodeid: str) -> int:
    """By which tests are sorted before they are given out."""
    return next((n for n, start in enumerate(FIRST) if nodeid.startswith(start)), len(FIRST))


class SideBySide(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """pytest-xdist's own scheduler by files, with other units."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
