"""The command `farside predict rebalance`: nodes that virtual clusters could lend each other, and the time saved."""

from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from farside.cli.figure_table import figure_table
from farside.cli.sim import Request
from farside.cli.simulate.request import prepare
from farside.scheduler.predict.rebalance import RebalanceParams
from farside.scheduler.sim.rebalancing import rebalance

TOLD = 20  # pairs of virtual clusters


def rebalance_tables(
    log: Path, vc_nodes: Path, gpus_per_node: int, policy: str, fmt: str, on_bad: Literal["refuse", "skip"]
) -> tuple[Table, Table]:
    """Queueing with it and without, by virtual cluster; and how many nodes went from whom to whom.

    Raises:
        ConfigError: The log or the file of nodes cannot be used.
    """
    request = Request(
        trace=log, policy=policy, gpus_per_node=gpus_per_node, vc_nodes=vc_nodes, fmt=fmt, on_bad=on_bad,
    )  # fmt: skip
    prepared = prepare(request)
    found = rebalance(prepared.experiments[0], prepared.scene, RebalanceParams(node_gpus=gpus_per_node))
    columns = ("virtual cluster", "jobs", "average queue s", "with lending", "95th queue s", "with lending")
    queueing = figure_table(*columns)
    groups = [(name, found.before.by_vc[name], found.after.by_vc[name]) for name in found.before.by_vc]
    groups.sort(key=lambda group: -group[1].avg_queue_s)
    for name, before, after in (*groups, ("all", found.before.all, found.after.all)):
        queueing.add_row(
            Text(name), f"{before.jobs:,}", f"{before.avg_queue_s:,.0f}", f"{after.avg_queue_s:,.0f}",
            f"{before.p95_queue_s:,.0f}", f"{after.p95_queue_s:,.0f}",
        )  # fmt: skip
    lending = figure_table("lender", "borrower", "nodes lent", texts=2)
    for (lender, borrower), count in list(found.moves.items())[:TOLD]:
        lending.add_row(Text(lender), Text(borrower), f"{count:,}")
    return queueing, lending
