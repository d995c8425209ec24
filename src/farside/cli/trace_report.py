"""Steps of `farside trace report`: checks, reads, analyses, writes and prints."""

from collections.abc import Callable, Iterator

import numpy as np

from farside.cli.trace import Request
from farside.errors import ConfigError
from farside.scheduler.sim.characterise.cluster_size import sizes_of
from farside.scheduler.sim.characterise.report_page import answer, change, facts, seconds
from farside.scheduler.sim.characterise.study import Study, study
from farside.scheduler.sim.output_files import check_apart, check_writable, written
from farside.scheduler.sim.trace.log import JobLog
from farside.scheduler.sim.trace.read_log import read_log
from farside.scheduler.sim.trace.read_nodes import read_vc_sizes
from farside.units import LONGEST_SPAN_S, format_moment


def run(request: Request, *, tell: Callable[[str], None]) -> Iterator[str]:
    """Writes what was asked for, and gives the lines that sum it up; ``tell``: called with what is done next.

    Raises:
        ConfigError: The log, the sizes or the files to write are not as they must be.
    """
    # 1. Check what can be checked before the work.
    check_apart(
        {"--output": request.page, "--json": request.json_out}, {"the log": request.log, "--vc-nodes": request.vc_nodes}
    )
    check_writable((request.page, request.json_out))
    # 2. Read.
    tell(f"reading {request.log}")
    vc_sizes = read_vc_sizes(request.vc_nodes, request.gpus_per_node) if request.vc_nodes else ()
    log = read_log(request.log, fmt=request.fmt, on_bad=request.on_bad)
    if not np.any(log.gpus > 0):
        raise ConfigError(f"{request.log}: no job has a GPU", hint="this page is about GPU clusters")
    _check_span(log)
    sizes = sizes_of(log, nodes=request.nodes or 0, gpus_per_node=request.gpus_per_node, vc_sizes=vc_sizes)
    # 3. Study.
    found = study(log, sizes, what_if_jobs=request.what_if_jobs, tell=tell)
    # 4. Write.
    tell(f"writing {request.page}")
    from farside.scheduler.sim.characterise.report import write_json, write_page  # matplotlib takes long to load

    with written(request.page) as place:
        write_page(place, found)
    if request.json_out is not None:
        with written(request.json_out) as place:
            write_json(place, found)
    # 5. Tell.
    yield from _summary(found)
    yield f"{request.page}: written"


def _check_span(log: JobLog) -> None:
    first_s, last_s = float(log.submit_s[0]), float(log.submit_s[-1])
    if last_s - first_s > LONGEST_SPAN_S:
        span = f"{format_moment(first_s)} to {format_moment(last_s)}"
        hint = "a clock was wrong: take the rows with such times out"
        raise ConfigError(f"{log.path}: its jobs were submitted from {span}", hint=hint)


def _summary(found: Study) -> Iterator[str]:
    yield from facts(found)
    for one in found.verdicts:
        yield f"{one.number}. {answer(one.holds):<13} {one.claim}: {one.found}"
    for what in found.what_ifs:
        group = what.groups[0]
        waits = f"{seconds(group.before_s)} to {seconds(group.after_s)} ({change(group.before_s, group.after_s)})"
        yield f"what if ({what.implication}) {what.title}: mean wait from {waits}"
    for number, title, why in found.omitted:
        yield f"what if ({number}) {title}: left out, {why}"
