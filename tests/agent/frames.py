"""Messages between agent and manager: ready-made ones and hypothesis strategies for any."""

import msgspec
from hypothesis import strategies as st

from farside.agent import messages as m

HELLO = m.Hello(
    node="n1",
    boot_id="b",
    incarnation="i",
    version="0.1.0",
    cpus=8,
    memory_bytes=1 << 30,
    gpus=(m.Gpu(index=0, model="h100", healthy=True),),
    headroom_bytes=1 << 29,
    tasks=(),
)
SPEC = m.TaskSpec(
    argv=("sh", "-c", "exit 3"),
    env={"A": "b"},
    cwd="/",
    user="alice",
    gpus=(0,),
    cpus=1.0,
    memory_bytes=0,
    stdout="/tmp/out",
    rank=0,
    world_size=1,
    master_addr="127.0.0.1",
    master_port=29500,
    time_limit_s=0,
    grace_s=1,
)


def report(seq: int, *tasks: m.TaskState) -> m.Report:
    return m.Report(seq=seq, at_s=1.0, headroom_bytes=0, psi=m.Psi(), gpus=(), tasks=tasks)


def start(task_id: str = "1.0", nth: int = 1, *, generation: int = 1, spec: m.TaskSpec = SPEC) -> m.Start:
    return m.Start(task_id=task_id, start=nth, generation=generation, spec=spec)


u32 = st.integers(0, 2**32 - 1)
u63 = st.integers(0, 2**63 - 1)
moments = st.floats(0, 4e12)
durations = st.floats(0, 4e9)
texts = st.text(st.characters(codec="utf-8"), max_size=256)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
paths = st.just("") | words.map(lambda text: f"/{text}")
task_ids = st.from_regex(r"[A-Za-z0-9_-]{1,20}\.[0-9]{1,6}", fullmatch=True)
nths = st.integers(1, 2**31 - 1)
gpus = st.builds(
    m.Gpu,
    index=st.integers(0, m.GPUS_MAX - 1),
    model=texts,
    healthy=st.booleans(),
    reason=texts,
    memory_bytes=st.none() | u63,
    busy_pct=st.none() | st.floats(0, 100),
)
different_gpus = st.lists(gpus, max_size=4, unique_by=lambda gpu: gpu.index).map(tuple)
profiles = st.builds(
    m.TaskProfile,
    processes=u32,
    iterations=u32,
    iteration_s=durations,
    sent_bytes=u63,
    largest_bytes=u63,
    portion_bytes=u63,
    problem=st.text(max_size=m.PROFILE_CHARS_MAX),
)
states = st.builds(
    m.TaskState,
    task_id=task_ids,
    start=nths,
    state=st.sampled_from(["starting", "running", "stopping", "exited", "lost"]),
    at_s=moments,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    cause=texts,
    cpu_s=durations,
    rss_bytes=u63,
    profile=st.none() | profiles,
    iterations=st.none() | st.builds(m.IterationTimes, count=st.integers(1, 2**63 - 1), median_s=st.floats(1e-9, 4e9)),
)
specs = st.builds(
    m.TaskSpec,
    argv=st.lists(words, min_size=1, max_size=5).map(tuple),
    env=st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,9}", fullmatch=True), words, max_size=5),
    cwd=paths,
    user=st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True),
    gpus=st.lists(st.integers(0, m.GPUS_MAX - 1), max_size=8).map(tuple),
    cpus=st.floats(0, 65536),
    memory_bytes=u63,
    stdout=paths,
    stderr=paths,
    rank=u32,
    world_size=st.integers(1, 2**32 - 1),
    master_addr=st.sampled_from(["n1", "10.0.0.1", "fe80::1"]),
    master_port=st.integers(1, 65535),
    time_limit_s=durations,
    grace_s=durations,
    resume=st.booleans(),
    checkpoint_dir=paths,
    swap_bytes=u63,
    profile=st.booleans(),
)
names = st.text("abc", min_size=1, max_size=64)
donors = st.builds(
    m.Donor, node=names, control=names, has_rdma=st.booleans(), lends=st.booleans(), free_bytes=u63, lent_bytes=u63
)
addresses = st.builds(m.DonorAddress, node=names, control=names)
swaps = st.builds(m.Swap, size_bytes=u63, used_bytes=u63)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
raws = json_values.map(msgspec.json.encode).map(msgspec.Raw)
service_names = st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True)
services = st.dictionaries(service_names, raws, max_size=3)
told = st.builds(m.Told, service=service_names, job=st.from_regex(r"[0-9]{1,6}", fullmatch=True), start=nths, raw=raws)
loads = st.builds(
    m.TaskLoad, task_id=task_ids, start=nths, age_s=durations, watched_s=durations,
    peaks=st.lists(st.tuples(st.integers(1, m.LOAD_PCT_MAX), durations), max_size=3).map(tuple),
)  # fmt: skip
agent_messages = st.one_of(
    st.builds(
        m.Hello,
        node=st.from_regex(r"[A-Za-z0-9_.:-]{1,64}", fullmatch=True),
        boot_id=st.text("abc", min_size=1, max_size=64),
        incarnation=st.text("abc", min_size=1, max_size=64),
        version=texts,
        cpus=st.integers(1, 65536),
        memory_bytes=u63,
        gpus=different_gpus,
        headroom_bytes=u63,
        tasks=st.lists(states, max_size=4).map(tuple),
        donor=st.none() | donors,
        swap=st.none() | swaps,
        services=services,
    ),
    st.builds(
        m.Report,
        seq=st.integers(1, 2**63 - 1),
        at_s=moments,
        headroom_bytes=u63,
        psi=st.builds(m.Psi, memory_full_pct=st.none() | st.floats(0, 100)),
        gpus=different_gpus,
        tasks=st.lists(states, max_size=4).map(tuple),
        donor=st.none() | donors,
        swap=st.none() | swaps,
        unfit=texts,
        drained=st.none() | st.builds(m.Drained, number=u63, slabs=st.integers(0, 2**32 - 1)),
        services=services,
        holding=st.lists(service_names, max_size=3).map(tuple),
        told=st.lists(told, max_size=3).map(tuple),
        loads=st.lists(loads, max_size=3).map(tuple),
    ),
    st.builds(m.Probed, probe_id=texts, problem=texts, is_refused=st.booleans(), made=paths),
)
manager_messages = st.one_of(
    st.builds(m.Welcome, generation=u63),
    st.builds(m.Ack, seq=u63),
    st.builds(m.Start, task_id=task_ids, start=nths, generation=u63, spec=specs),
    st.builds(m.Stop, task_id=task_ids, start=nths, generation=u63, cause=texts, grace_s=durations),
    st.builds(m.Forget, task_id=task_ids, start=nths),
    st.builds(
        m.Probe,
        probe_id=texts,
        step=st.sampled_from(["write", "see", "clear"]),
        user=st.just("alice"),
        path=paths,
        mark=st.just(".mark"),
        made=paths,
    ),
    st.builds(
        m.Donors,
        donors=st.lists(st.builds(m.DonorAddress, node=names, control=names), max_size=m.DONORS_MAX).map(tuple),
    ),
    st.builds(m.Service, name=service_names, epoch=u63, generation=u63, raw=raws),
    st.builds(m.PowerOff, closed_by=st.integers(1, 2**63 - 1), generation=u63),
    st.builds(m.Lending, closed_by=u63, generation=u63, deadline_s=st.floats(0, 86_400)),
)
