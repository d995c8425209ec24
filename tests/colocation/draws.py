"""Jobs for tests of co-location."""

import math
import random
from dataclasses import replace

from hypothesis import strategies as st

from farside.group_time import WorkProfile

_SECONDS = st.floats(0.01, 100.0)

_ONE = st.builds(
    WorkProfile, job=st.just(""), work_machine_s=st.floats(0.01, 2000.0), net_s=_SECONDS, update_s=st.floats(0.0, 2.0),
    net_alone_s=_SECONDS, floor_bytes=st.just(0), input_bytes=st.just(0),
)  # fmt: skip


def _named(found: list[WorkProfile]) -> list[WorkProfile]:
    return [replace(one, job=f"j{number}") for number, one in enumerate(found)]


profiles = st.lists(_ONE, min_size=1, max_size=8).map(_named)


def _with_updates(job: WorkProfile, share: float, leaves_processor: bool) -> WorkProfile:
    """A job that takes this share of a machine's processors while it is on the network."""
    return replace(
        job, net_cpu_s=share * job.net_s, net_cpu_alone_s=share * job.net_alone_s, leaves_processor=leaves_processor
    )  # fmt: skip


updating = st.lists(
    st.builds(_with_updates, _ONE, st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=8
).map(_named)  # fmt: skip
"""Jobs whose updates take processor time."""


def drawn(jobs: int, seed: int, *, net_sigma: float = 0.8) -> list[WorkProfile]:
    """Jobs as the reproduction draws them."""
    rng = random.Random(seed)
    found = list[WorkProfile]()
    for number in range(jobs):
        net_s = rng.lognormvariate(math.log(5.5) - net_sigma**2 / 2, net_sigma)
        work_machine_s = 16 * net_s * rng.lognormvariate(math.log(1.04), 0.7)
        found.append(WorkProfile(job=f"j{number}", work_machine_s=work_machine_s, net_s=net_s))
    return found


def on_one_machine(jobs: list[WorkProfile], machines: int) -> list[WorkProfile]:
    """Jobs whose one worker each takes as long as one of several did, on the network too."""
    return [replace(one, work_machine_s=one.comp_s(machines), net_alone_s=one.net_s) for one in jobs]
