"""PageRank over a generated graph with power-law degrees, in PowerGraph's place. [infiniswap §2.7.3.3]

    python3 -m benchmarks.apps.page_rank

An operation is ``CHUNK`` edges; a pass over all edges is one iteration.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.apps.worker import serve

VERTICES = 500_000
EDGES = 5_242_880
CHUNK = 1 << 16
DAMPING = 0.85
SKEW = 3.0  # a vertex's chance of being chosen falls as number^(1/SKEW - 1): a tail with exponent 2.5, as Twitter's


class Graph:
    """Edges ordered by their target, as two columns; 8 bytes an edge."""

    def __init__(self, vertices: int, edges: int, *, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.vertices = vertices
        self.target = np.sort(_chosen(rng, vertices, edges))
        self.source = np.empty(edges, np.int32)
        for first in range(0, edges, CHUNK):
            part = self.source[first : first + CHUNK]
            part[:] = _chosen(rng, vertices, len(part))


class PageRank:
    """The ranks of a graph's vertices, made better chunk by chunk."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._out_degree = np.zeros(graph.vertices, np.int32)
        for first in range(0, len(graph.source), CHUNK):
            np.add.at(self._out_degree, graph.source[first : first + CHUNK], 1)
        np.maximum(self._out_degree, 1, out=self._out_degree)
        self.ranks = np.full(graph.vertices, 1 / graph.vertices)
        self._next = np.full(graph.vertices, (1 - DAMPING) / graph.vertices)
        self._share = self.ranks / self._out_degree
        self._at = 0
        self.passes = 0

    def step(self) -> bool:
        """The next chunk of edges; after the last one the ranks are the next iteration's."""
        source = self._graph.source[self._at : self._at + CHUNK]
        target = self._graph.target[self._at : self._at + CHUNK]
        first = int(target[0])
        arriving = np.bincount(target - first, weights=self._share[source])
        self._next[first : first + len(arriving)] += DAMPING * arriving
        self._at += CHUNK
        if self._at >= len(self._graph.source):
            self._end_pass()
        return True

    def _end_pass(self) -> None:
        self.ranks, self._next = self._next, self.ranks
        self._next[:] = (1 - DAMPING) / self._graph.vertices
        np.divide(self.ranks, self._out_degree, out=self._share)
        self._at = 0
        self.passes += 1


def _chosen(rng: np.random.Generator, vertices: int, count: int) -> NDArray[np.int32]:
    return np.asarray(rng.random(count, np.float32) ** SKEW * (vertices - 1), np.int32)


def main() -> None:
    """Until the end of standard input."""
    serve(PageRank(Graph(VERTICES, EDGES)).step)


if __name__ == "__main__":
    main()
