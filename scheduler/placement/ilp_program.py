"""The paper's integer program for the placement of a job, solved by HiGHS. PURE.

[tiresias §3.3.3.1, III.1 to III.3]. Workers w_i and servers p_ji are placed so that the greatest network traffic of any
node, with the traffic t_i that is there already, is smallest (traffic.py has T_i).

How it works
  T_i has the products ``w_i p_ji`` of a bounded integer and a binary. Each becomes a variable z_ji of its own with

      z_ji <= g_i p_ji      z_ji <= w_i      z_ji >= w_i - g_i (1 - p_ji)      z_ji >= 0

  which leave it no other value than the product: exact, not a relaxation. Then
  ``T_i = t_i + M w_i + W sum_j s_j p_ji - 2 sum_j s_j z_ji`` is linear, and the greatest of them is one more variable.

Where it differs from the text
  III.1 is printed as w_i < g_i. That would leave a GPU unused on every node, and a job of four GPUs without a place on
  an idle node of four; w_i <= g_i is meant, and is what is here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from farside.scheduler.placement.traffic import node_traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficProblem:
    """One job to place.

    Attributes:
        free_gpus: g_i, by node.
        traffic_bytes: t_i, by node.
        workers: W.
        server_bytes: s_j; their sum is M.
    """

    free_gpus: tuple[int, ...]
    traffic_bytes: tuple[float, ...]
    workers: int
    server_bytes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSolution:
    """Solution: nodes of the workers and of the servers.

    Attributes:
        workers: w_i, by node.
        hosts: The node of each server.
        most_bytes: The greatest T_i.
        is_proven: Nothing better exists; otherwise the limit ended the search, and this is the best that it had found.
    """

    workers: tuple[int, ...]
    hosts: tuple[int, ...]
    most_bytes: float
    is_proven: bool


def solve(problem: TrafficProblem, *, time_limit_s: float = 10.0, node_limit: int = 0) -> TrafficSolution | None:
    """Solve for the smallest maximum traffic. None: too few GPUs, or a limit ended the search too early.

    Args:
        problem: The job and the nodes.
        time_limit_s: The search ends after this. A result that it cut short depends on the machine's speed.
        node_limit: The search ends after so many nodes of its tree, on any machine the same; 0: without limit.
    """
    if sum(problem.free_gpus) < problem.workers:
        return None
    program = _Program(problem)
    # HiGHS would stop within a ten-thousandth of the best: a reference must be exact.
    options: dict[str, float] = {"time_limit": time_limit_s, "mip_rel_gap": 0.0}
    if node_limit:
        options["node_limit"] = node_limit
    found = milp(
        program.objective,
        integrality=program.integrality,
        bounds=program.bounds,
        constraints=program.constraints,
        options=options,
    )
    return None if found.x is None else program.read(np.asarray(found.x), is_proven=found.status == 0)


class _Program:
    """Columns: w_i, then p_ji and z_ji a server after the other, then the greatest traffic.

    Traffic is in units of M, as the tolerances of the solver are absolute.
    """

    def __init__(self, problem: TrafficProblem) -> None:
        self._problem = problem
        self._nodes, self._servers = len(problem.free_gpus), len(problem.server_bytes)
        self._unit = sum(problem.server_bytes) or 1.0
        columns = self._nodes * (1 + 2 * self._servers) + 1
        self.objective = np.zeros(columns)
        self.objective[-1] = 1.0
        self.integrality = np.ones(columns)
        self.integrality[self._nodes * (1 + self._servers) :] = 0  # z follows from w and p
        upper = np.full(columns, np.inf)
        most = np.minimum(problem.free_gpus, problem.workers)
        upper[: self._nodes] = most
        for server in range(self._servers):
            upper[self._p(server)] = 1
            upper[self._z(server)] = most
        limits: Any = (np.zeros(columns), upper)
        self.bounds = Bounds(*limits)
        self.constraints = [self._all_placed(columns), self._products(columns, most), self._traffic(columns)]

    def _p(self, server: int) -> slice:
        return slice(self._nodes * (1 + server), self._nodes * (2 + server))

    def _z(self, server: int) -> slice:
        return self._p(self._servers + server)

    def _all_placed(self, columns: int) -> LinearConstraint:
        """III.2 and III.3: all workers, and each server once."""
        rows = lil_array((1 + self._servers, columns))
        rows[0, : self._nodes] = 1
        for server in range(self._servers):
            rows[1 + server, self._p(server)] = 1
        exactly = np.array([self._problem.workers, *[1] * self._servers])
        return _constraint(rows, exactly, exactly)

    def _products(self, columns: int, most: NDArray[np.float64]) -> LinearConstraint:
        rows = lil_array((3 * self._nodes * self._servers, columns))
        upper = np.zeros(3 * self._nodes * self._servers)
        row = 0
        for server in range(self._servers):
            p, z = self._p(server).start, self._z(server).start
            for at, gpus in enumerate(most):
                rows[row, z + at], rows[row, p + at] = 1, -gpus
                rows[row + 1, z + at], rows[row + 1, at] = 1, -1
                rows[row + 2, z + at], rows[row + 2, at], rows[row + 2, p + at] = -1, 1, gpus
                upper[row + 2] = gpus
                row += 3
        return _constraint(rows, -np.inf, upper)

    def _traffic(self, columns: int) -> LinearConstraint:
        """T_i is at most the greatest."""
        problem = self._problem
        rows = lil_array((self._nodes, columns))
        for at in range(self._nodes):
            rows[at, at] = sum(problem.server_bytes) / self._unit
            rows[at, columns - 1] = -1
            for server, size in enumerate(problem.server_bytes):
                rows[at, self._p(server).start + at] = problem.workers * size / self._unit
                rows[at, self._z(server).start + at] = -2 * size / self._unit
        return _constraint(rows, -np.inf, -np.array(problem.traffic_bytes) / self._unit)

    def read(self, values: NDArray[np.float64], *, is_proven: bool) -> TrafficSolution:
        """Solution from the columns. T_i is computed again, without the solver's tolerance."""
        problem = self._problem
        workers = tuple(int(count) for count in np.rint(values[: self._nodes]))
        hosts = tuple(int(np.argmax(values[self._p(server)])) for server in range(self._servers))
        most = max(node_traffic(problem.traffic_bytes, workers, hosts, problem.server_bytes))
        return TrafficSolution(workers=workers, hosts=hosts, most_bytes=most, is_proven=is_proven)


def _constraint(rows: lil_array, lower: Any, upper: Any) -> LinearConstraint:
    """Any: the types that are known of scipy deny it arrays of limits."""
    return LinearConstraint(rows.tocsr(), lower, upper)
