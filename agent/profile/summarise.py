"""Summary of what one process sends in an iteration: bytes in all, and its largest tensor. PURE.

[tiresias §3.3.3.2] The skew S_J follows from both: the largest tensor's share of the model, as in Table 3.3.

A tensor is a message, or a batch of messages ("other frameworks may split each tensor into multiple messages, but
still, these messages are sent out in clear batches"): messages of one flow, one behind the other, all of one size, and
the shorter one behind them. Between two weights of equal size stands a bias or a norm in most models, which ends a
batch; where none does, a model seems more skewed than it is, and its job is consolidated as if nobody knew.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from statistics import median

from farside.agent.messages import ProfileFigures
from farside.agent.profile.iteration import ITERATIONS_MIN, marks
from farside.agent.profile.message import CONTROL_BYTES, Message, are_equal, are_near, messages_of
from farside.agent.profile.ring import Event

ITERATION_MIN_S = 0.001
"""What repeats faster is a stream cut into pieces, and no training of a model whose place matters."""
MODEL_BYTES_MIN = 1024
STEADY_WITHIN = 0.1
STEADY_MIN = 0.5
"""Least share of the iterations whose bytes are within the tenth of the median."""


def summarise(events: Sequence[Event]) -> ProfileFigures:
    """What a process sends in one iteration, medians over all that were seen, or why that is not known.

    ``events`` are ordered by time.
    """
    messages = messages_of(events)
    flows = _by_flow(messages)
    if not flows:
        return ProfileFigures(problem="it sent nothing")
    anchor = max(flows.values(), key=lambda flow: (sum(message.bytes for message in flow), len(flow)))
    found = marks(anchor)
    if not found:
        return ProfileFigures(problem=f"its {len(anchor)} messages show no {ITERATIONS_MIN} iterations that are alike")
    iteration_s = median(after - before for before, after in pairwise(found)) / 1e9
    if iteration_s < ITERATION_MIN_S:
        return ProfileFigures(problem=f"what it sends repeats every {iteration_s * 1e6:.0f} us, as no training does")
    windows = [_figures(part) for part in _windows(messages, found)]
    sent_bytes = int(median(window.sent_bytes for window in windows))
    largest_bytes = min(sent_bytes, int(median(window.largest_bytes for window in windows)))
    steady = sum(abs(window.sent_bytes - sent_bytes) <= STEADY_WITHIN * sent_bytes for window in windows)
    if sent_bytes < MODEL_BYTES_MIN or not largest_bytes:
        return ProfileFigures(problem=f"it sends {sent_bytes} bytes an iteration, too few for a model")
    if steady < STEADY_MIN * len(windows):
        return ProfileFigures(problem="the bytes that it sends differ from iteration to iteration")
    return ProfileFigures(
        iterations=len(windows),
        iteration_s=iteration_s,
        sent_bytes=sent_bytes,
        largest_bytes=largest_bytes,
        portion_bytes=min(sent_bytes, int(median(window.portion_bytes for window in windows))),
    )


def _figures(messages: Sequence[Message]) -> ProfileFigures:
    """One iteration's messages, summed up."""
    flows = _by_flow(messages)
    return ProfileFigures(
        sent_bytes=sum(message.bytes for message in messages),
        largest_bytes=max((max(tensors_of(flow), default=0) for flow in flows.values()), default=0),
        portion_bytes=max((sum(message.bytes for message in flow) for flow in flows.values()), default=0),
    )


def tensors_of(flow: Sequence[Message]) -> list[int]:
    """Sizes of the tensors of one flow in one iteration.

    Equal messages behind each other are one tensor; so are others of that size, if nothing but such batches came in
    between, whose parts go in turn. A message alone ends all batches before it: it is another tensor, or the rest of
    the last one if it is shorter. A nearly equal one ends nothing: it is the last part of one that was split evenly.
    """
    runs = _runs([message.bytes for message in flow if message.bytes > CONTROL_BYTES])
    found: list[_Batch] = []
    running: list[_Batch] = []
    for run, following in zip_longest(runs, runs[1:]):
        mine = next((batch for batch in running if batch.goes_on(run, following)), None)
        if mine is not None:
            mine.add(run)
            continue
        if run.count == 1:
            last, running = running[-1] if running else None, []
            if last is not None and last.count > 1 and run.bytes < last.part_bytes:
                last.add(run)
                continue
        running.append(_Batch(part_bytes=run.bytes, count=run.count, total=run.bytes * run.count))
        found.append(running[-1])
    return [batch.total for batch in found]


@dataclass(frozen=True, slots=True)
class _Run:
    bytes: int
    count: int


@dataclass(slots=True)
class _Batch:
    part_bytes: int
    count: int
    total: int

    def goes_on(self, run: _Run, following: _Run | None) -> bool:
        """Whether a run is of the same tensor."""
        if are_equal(run.bytes, self.part_bytes):
            return True
        if not are_near(run.bytes, self.part_bytes):
            return False
        returns = following is not None and are_equal(following.bytes, self.part_bytes)
        return (run.count == 1 and (self.count > 1 or returns)) or (self.count == 1 and run.count > 1)

    def add(self, run: _Run) -> None:
        """Takes it in."""
        self.total += run.bytes * run.count
        if run.count > self.count:
            self.part_bytes, self.count = run.bytes, run.count
        elif are_equal(run.bytes, self.part_bytes):
            self.count += run.count


def _runs(sizes: Sequence[int]) -> list[_Run]:
    found: list[_Run] = []
    for size in sizes:
        if found and are_equal(size, found[-1].bytes):
            found[-1] = _Run(found[-1].bytes, found[-1].count + 1)
        else:
            found.append(_Run(size, 1))
    return found


def _by_flow(messages: Sequence[Message]) -> dict[int, list[Message]]:
    flows: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        flows[message.flow].append(message)
    return flows


def _windows(messages: Sequence[Message], found: Sequence[int]) -> Iterator[Sequence[Message]]:
    """Messages from each mark up to the next."""
    begins = [message.begin_ns for message in messages]
    places = [bisect_left(begins, at_ns) for at_ns in found]
    return (messages[begin:end] for begin, end in pairwise(places))
