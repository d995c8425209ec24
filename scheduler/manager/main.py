"""`farside manager`: the parent of the scheduler process and of the API process, which restarts them when they end.

The scheduler process may compute for a second; the API must answer meanwhile, so they share nothing but the store. Each
can be killed at any moment: what it knew is in the log, and its successor reads it (processes.py has their keeper).
"""

import os
from collections.abc import Mapping
from functools import partial

from farside.config import ManagerConfig
from farside.config.check import names_in
from farside.ending import leave_no_core_dump
from farside.errors import ConfigError
from farside.log import get_log, start_logging
from farside.scheduler.configured_rules import idle_rules_of, partitions_of
from farside.scheduler.manager.aggregation.decide import AggregationRules
from farside.scheduler.manager.api.process import serve
from farside.scheduler.manager.colocation.outlook import ColocationRules
from farside.scheduler.manager.decider.scheduler_process import SchedulerProcess
from farside.scheduler.manager.named_files import named_files
from farside.scheduler.manager.processes import Part, Parts, Work
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.housekeeping import keep_house
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.sim.learned_before import NO_TREES, LearnedBefore

# A part's event loop that has not turned for so long hangs.
HANG_S = {"brain": 60.0, "api": 60.0, "housekeeping": 60.0}
# Both read all of the log before their loops turn.
LOAD_S = 600.0

_log = get_log("manager")


def run(config: ManagerConfig) -> int:
    """Runs a manager until SIGTERM or SIGINT; returns the process's exit code.

    Raises:
        ConfigError: A setting, the store or an address cannot be used.
        FarsideError: The store cannot be brought up to date.
    """
    start_logging(config.log_level)
    leave_no_core_dump()
    # The files that settings name are read once, here. A wrong one is one error before any process is started, and a
    # part that is started again goes on with what was read, whatever has become of the files.
    read = named_files(config)
    try:
        config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise ConfigError(f"state_dir {config.state_dir}: {error.strerror}", hint="name another folder") from error
    store = EventStore(config.store_url)
    upgrade(store)
    # Closed before the parts are forked: each opens connections of its own.
    store.close()
    works: Mapping[str, Work] = {
        "brain": partial(_scheduler, before=read.policy),
        "api": partial(serve, power=read.power, first_tls=read.tls),
        "housekeeping": keep_house,
    }
    parts = {name: Part(work=work, hang_s=HANG_S[name], load_s=LOAD_S) for name, work in works.items()}
    return Parts(config, parts).run()


async def _scheduler(config: ManagerConfig, *, before: LearnedBefore) -> None:
    holder = f"{config.node}:{os.getpid()}"
    shared = AggregationRules(
        loss_limit=config.aggregation_loss_limit,
        period_s=config.aggregation_period_s,
        keep_s=config.aggregation_keep_s,
    )
    store = EventStore(config.store_url)
    groups = ColocationRules(nodes=frozenset(names_in(config.colocation_nodes)), min_run_s=config.min_run_s)
    if before.lacks_trees:
        _log.warning(NO_TREES)
    await SchedulerProcess(
        store, before.rules, config.state_dir, holder, aggregation=shared, colocation=groups, make_times=before.times,
        partitions=partitions_of(config), idle=idle_rules_of(config),
        recall_s=config.recall_s,
    ).run()  # fmt: skip
