"""A job's specification: one record for the command line, the API, the log and the page. PURE.

How it works
  A key of a job is declared once, with its meaning and its limits (field_limit.py), as a field of `JobSpec`. `JobBody`
  is what the API takes: the same keys, how many such jobs, and what may be left out; `spec_of` fills in what follows.
  The OpenAPI document, the keys of a job file and the refusals all come from these two.
"""

import re
from collections.abc import Container, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from farside.agent.messages import (
    ARGUMENT_CHARS_MAX,
    ARGUMENTS_MAX,
    DEFAULT_UMASK,
    FEATURES_MAX,
    GROUP_NODES_MAX,
    THREADS,
    VARIABLES_MAX,
)
from farside.config.check import NODE as NAME
from farside.config.check import NODE_WORDS as NAME_WORDS
from farside.scheduler.manager.aggregation.state import OWNERS_MAX
from farside.scheduler.manager.field_limit import items, limit_problems, line, number, path
from farside.scheduler.manager.model.role import (
    MAX_ROLES,
    Arguments,
    Role,
    RoleBody,
    gpus_of,
    per_gpu,
    role_of,
    role_problems,
)
from farside.scheduler.state import ANY_NODE, Choice
from farside.units import format_count

# What lies above is a slip of the hand. The message that starts a task on a node holds 1 MiB, all of this included.
MAX_ARGUMENT_BYTES = 256 * 1024
MAX_ENVIRONMENT_BYTES = 256 * 1024
MAX_GPUS = 100_000
MAX_COUNT = 100_000
MAX_RETRIES = 1000
MAX_THREADS = 4096
# A co-located job may be moved, and ends with its node's other jobs' luck: it goes on from its checkpoint.
COLOCATED_RETRIES = 3
MAX_GRACE_S = 3600.0
MAX_TIME_LIMIT_S = 4e9  # 126 years, as much as agents take
MAX_AFTER = 1000
CHOICE_MAX = 1000
# Of a job times its count: each of the jobs is told of each that ends.
MAX_AFTER_IN_ALL = 100_000
# What GPUs of a job with roles bring along follows from the roles.
_PER_GPU = ("cpus_per_gpu", "memory_bytes_per_gpu", "swap_bytes_per_gpu")
_WORKERS = re.compile(r"([1-9][0-9]{0,3})(?:-([1-9][0-9]{0,3}))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}\Z")
_AFTER_ADVICE = "wait for one that waits for them"


class Ranks(StrEnum):
    """Processes of a job: one on each of its nodes, or one for each of its GPUs."""

    NODE = "node"
    GPU = "gpu"


# After the words of its Farside, what the program of a lease is.
WORKER_WORDS = ("serve", "worker")


class JobSpec(Struct, frozen=True, kw_only=True):
    """A job as its user described it; the log keeps it. ``argv`` of a job with roles is its first role's."""

    argv: Arguments
    gpus: Annotated[
        int,
        number(
            "GPUs over all nodes; the job starts with all of them or not at all; 0 with colocate alone", 0, MAX_GPUS,
            below="ask for 1 or more",
        ),
    ] = 1  # fmt: skip
    name: Annotated[str, line("What listings call the job; empty: the name of its program")] = ""
    account: Annotated[str, line("Whom its GPU hours are charged to; empty: the first account of its user")] = ""
    qos: Annotated[str, line("Its quality of service; empty: the default")] = ""
    partition: Annotated[
        str, line("The partition whose nodes it runs on; empty: the first that its account may use")
    ] = ""
    cwd: Annotated[str, path("Folder it is started in, absolute")] = "/"
    env: Annotated[
        Mapping[str, str],
        items("Variables besides those that Farside sets", VARIABLES_MAX, "put them in a file", word="maxProperties"),
    ] = field(default_factory=lambda: {})  # noqa: PIE807 - of `dict` itself the log's schema would show a default
    ranks: Annotated[Ranks, Meta(description="One process for each node, or for each GPU; unused with roles")] = (
        Ranks.NODE
    )
    gpu_model: Annotated[str, line("Only GPUs of this model; empty: any")] = ""
    nodes: Annotated[
        tuple[str, ...], items("Only nodes among these; empty: among all", CHOICE_MAX, "name a partition or a feature")
    ] = ()
    exclude: Annotated[
        tuple[str, ...], items("None of these nodes, and none with these features", CHOICE_MAX, "name features")
    ] = ()
    features: Annotated[
        tuple[str, ...], items("Only nodes with all of these features, such as rack:r1", FEATURES_MAX, "ask for fewer")
    ] = ()
    cpus_per_gpu: Annotated[float, number("CPUs it needs for each GPU; 0: not counted", 0)] = 0.0
    memory_bytes_per_gpu: Annotated[float, number("Memory it needs for each GPU; 0: not counted", 0)] = 0.0
    swap_bytes_per_gpu: Annotated[
        float, number("Farside swap beyond its memory, for each GPU; 0: no swap at all", 0)
    ] = 0.0
    time_limit_s: Annotated[
        float, number("The job is ended once it has held its GPUs this long", 0, MAX_TIME_LIMIT_S, "0 is none")
    ] = 0.0
    grace_s: Annotated[float, number("Time between SIGTERM and SIGKILL when it has to stop", 0, MAX_GRACE_S)] = 30.0
    preemptible: Annotated[bool, Meta(description="Whether others may take its GPUs")] = True
    checkpoint_dir: Annotated[
        str, path("Folder that all nodes share, absolute; a job that is resumed finds its checkpoint there")
    ] = ""
    output: Annotated[str, path("Path of its output, %j the job, %r the rank; empty: farside-%j.%r.log in cwd")] = ""
    umask: Annotated[
        int,
        number("Permissions that its files and its output do not get, as a number: 18 is 022", 0, 0o777),
    ] = DEFAULT_UMASK
    retries: Annotated[int, number("How often it is started again after it failed by itself", 0, MAX_RETRIES)] = 0
    after: Annotated[
        tuple[str, ...], items("Jobs that must have ended well before it may start", MAX_AFTER, _AFTER_ADVICE)
    ] = ()
    roles: tuple[Role, ...] = ()
    model: Annotated[str, line("What it trains, as Tiresias's Table 3.3 calls it: vgg16; empty: something else")] = ""
    aggregation: Annotated[
        Literal["", "shared"],
        Meta(
            description="shared: its gradients are aggregated by Aggregators that all jobs share; empty: they are not"
        ),
    ] = ""
    colocate: Annotated[
        bool,
        Meta(description="Whether it runs without GPUs, on nodes where it takes turns with others of its kind"),
    ] = False
    threads: Annotated[int, number("Threads that it computes with; only with colocate", 1, MAX_THREADS)] = 1
    memory_bytes: Annotated[
        float, number("Memory that it gets on each of its nodes; only with colocate; 0: not counted", 0)
    ] = 0.0
    workers: Annotated[
        str, line("Nodes on each of which it has a worker, fewest and most, as 1-4; only with colocate; empty: one")
    ] = ""
    deployment: Annotated[str, line("The deployment of inference that its GPU is for; empty: none")] = ""
    aggregators: Annotated[
        int, number("Parameter servers that it would need for itself; only with aggregation", 1, OWNERS_MAX)
    ] = 1
    profile: Annotated[
        bool | None,
        Meta(description="Whether its communication is profiled; default: at first, if placement is by skew"),
    ] = None

    @property
    def choice(self) -> Choice:
        """The nodes that will do for it by their names and features."""
        if not (self.nodes or self.exclude or self.features):
            return ANY_NODE
        return Choice(nodes=self.nodes, exclude=self.exclude, features=self.features)

    def role(self, name: str) -> Role | None:
        """The role of that name; None of a job without roles."""
        return next((role for role in self.roles if role.name == name), None)

    def memory_of(self, role: str, gpus: int) -> int:
        """Bytes of memory to request for a process of this role (empty: none) with ``gpus`` GPUs; 0: none."""
        named = self.role(role)
        if named is not None:
            return int(named.memory_bytes)
        return int(self.memory_bytes if self.colocate else self.memory_bytes_per_gpu * gpus)

    @property
    def worker_range(self) -> tuple[int, int]:
        """On how many nodes a co-located job has a worker, fewest and most; one, where `workers` can't be read."""
        found = _WORKERS.fullmatch(self.workers)
        return (int(found[1]), int(found[2] or found[1])) if found is not None else (1, 1)

    @property
    def is_lease(self) -> bool:
        """Whether it is a GPU of a deployment: it names one, and its program is a worker of that one's front."""
        return bool(self.deployment) and any(pair == WORKER_WORDS for pair in pairwise(self.argv))

    @property
    def title(self) -> str:
        """Its name, or that of its program."""
        return self.name or self.argv[0].rsplit("/", 1)[-1]

    @property
    def size_bytes(self) -> int:
        """Size of the long texts of a job."""
        chosen = (*self.nodes, *self.exclude, *self.features)
        texts = (*_all_arguments(self), *self.env, *self.env.values(), *self.after, *chosen)
        return sum(map(_size_bytes, texts))

    def output_path(self, job_id: str, rank: int) -> str:
        """Where a rank's output goes."""
        pattern = self.output or "farside-%j.%r.log"
        path = pattern.replace("%j", job_id).replace("%r", str(rank))
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"


class JobBody(JobSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job, or ``count`` jobs alike; as in a job file."""

    argv: Arguments = ()
    # None says that the default counts; `spec_of` sees to it that the log never keeps it.
    preemptible: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        bool | None, Meta(description="Whether others may take its GPUs; default: whether it has a checkpoint_dir")
    ] = None  # type: ignore[assignment]
    roles: Annotated[
        tuple[RoleBody, ...],
        items("Processes that are not alike, all started at once", MAX_ROLES, "give processes that are alike one role"),
    ] = ()
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT, description="Number of identical jobs")] = 1
    hold: Annotated[bool, Meta(description="Whether it does not start before it is released")] = False


EXAMPLE: Mapping[str, Any] = {"argv": ["python", "train.py"], "gpus": 2, "cwd": "/home/ann", "time_limit_s": 7200}


def spec_of(body: JobBody, named: Container[str]) -> JobSpec:
    """What the log keeps of a body: what is not ``named`` in it follows from the rest of it."""
    roles = tuple(map(role_of, body.roles))
    found = {name: getattr(body, name) for name in JobSpec.__struct_fields__}
    found |= {"roles": roles}
    # Each once, and what is chosen in one order: jobs that choose alike are alike to the cycle.
    found |= {"after": tuple(dict.fromkeys(body.after))}
    found |= {key: tuple(sorted(set(getattr(body, key)))) for key in ("nodes", "exclude", "features")}
    if body.preemptible is None:
        found["preemptible"] = bool(body.checkpoint_dir) or body.colocate
    if body.colocate:
        given = {"gpus": 0, "retries": COLOCATED_RETRIES}
        found |= {name: value for name, value in given.items() if name not in named}
    if roles:
        found |= {name: value for name, value in _of_roles(roles).items() if name not in named}
    return JobSpec(**found)


def _of_roles(roles: tuple[Role, ...]) -> Mapping[str, Any]:
    """Keys of a job that its roles have already."""
    each = {key: per_gpu(roles, key.removesuffix("_per_gpu")) for key in _PER_GPU}
    return {"argv": roles[0].argv, "gpus": gpus_of(roles), **each}


def spec_problems(spec: JobSpec) -> Iterator[str]:
    """Errors in a job on any cluster; each line names the key and what to do."""
    yield from _text_problems(spec)
    yield from limit_problems(spec)
    for key, folder in (("cwd", spec.cwd), ("checkpoint_dir", spec.checkpoint_dir or "/")):
        if not folder.startswith("/"):
            yield f"{key}: must be an absolute path, is '{folder:.60}'"
    if spec.swap_bytes_per_gpu and not spec.memory_bytes_per_gpu:
        yield "swap: a job swaps what goes beyond its memory; say how much that is, by memory_per_gpu"
    for key in ("nodes", "exclude", "features"):
        wrong = next((name for name in getattr(spec, key) if not NAME.fullmatch(name)), None)
        if wrong is not None:
            yield f"{key}: '{wrong:.60}' is no name; {NAME_WORDS}"
    both = sorted(set(spec.nodes) & set(spec.exclude))
    if both:
        yield f"exclude: {both[0]} is among nodes as well; leave it out of one"
    if spec.aggregators > 1 and not spec.aggregation:
        yield 'aggregators: only a job with aggregation = "shared" has any; add that, or leave it out'
    yield from _colocation_problems(spec)
    yield from _lease_problems(spec)
    if spec.roles:
        yield from role_problems(spec.roles)
        told = {key: getattr(spec, key) for key, value in _of_roles(spec.roles).items() if getattr(spec, key) != value}
        if "argv" in told:
            yield "argv: each role has its own; leave it out"
        if "gpus" in told:
            yield f"gpus: the roles ask for {gpus_of(spec.roles)} in all, not {spec.gpus}; leave it out"
        for key in _PER_GPU:
            if key in told:
                yield f"{key}: each role has its own cpus, memory_bytes and swap_bytes; leave it out"


# What a co-located job can't have, with the way out.
_NOT_COLOCATED: Mapping[str, str] = {
    "roles": "a co-located job is one process a node; leave them out",
    "ranks": "a co-located job is one process a node; leave it out",
    "gpu_model": "a co-located job has no GPUs; leave it out",
    "cpus_per_gpu": "a co-located job has no GPUs; say threads instead",
    "memory_bytes_per_gpu": "a co-located job has no GPUs; say memory_bytes instead",
    "swap_bytes_per_gpu": "a co-located job has no swap; leave it out",
    "nodes": "a co-located job may be moved to any node for such jobs; leave it out",
    "exclude": "a co-located job may be moved to any node for such jobs; leave it out",
    "features": "a co-located job may be moved to any node for such jobs; leave it out",
    "partition": "co-located jobs have nodes of their own; leave it out",
    "aggregation": "a co-located job sums at its nodes' Aggregators, or those that its program names; leave it out",
    "deployment": "a co-located job serves no models; leave it out",
    "profile": "a co-located job is measured by its node's executor; leave it out",
    "model": "a co-located job is measured by its node's executor; leave it out",
}
_PLAIN = JobSpec(argv=())


def _colocation_problems(spec: JobSpec) -> Iterator[str]:
    """Errors of a job without GPUs, and keys that only such a job has."""
    if not spec.colocate:
        if not spec.gpus and not spec.roles:
            yield "gpus: a job without GPUs has colocate = true; add that, or ask for 1 or more"
        for key in ("threads", "memory_bytes", "workers"):
            if getattr(spec, key) != getattr(_PLAIN, key):
                yield f"{key}: only a job with colocate = true has any; add that, or leave it out"
        return
    if spec.gpus:
        yield f"gpus: a co-located job has none, not {spec.gpus}; leave it out"
    for key, advice in _NOT_COLOCATED.items():
        if getattr(spec, key) != getattr(_PLAIN, key):
            yield f"{key}: {advice}"
    yield from _worker_problems(spec)
    for name in THREADS:
        if name in spec.env:
            yield f"env.{name}: is set by a co-located job's key threads; write that instead"
    if not spec.checkpoint_dir:
        yield "checkpoint_dir: a co-located job may be moved to another node and goes on from there; name a folder"
    if not spec.preemptible:
        yield "preemptible: a co-located job may be moved to another node; leave it out"


def _lease_problems(spec: JobSpec) -> Iterator[str]:
    """Errors of a lease of a deployment: one GPU for some time, whose front may leave it idle."""
    if not spec.deployment or spec.colocate:
        return
    if spec.roles or spec.gpus != 1:
        has = "roles" if spec.roles else format_count(spec.gpus, "GPU")
        yield f"deployment: a lease is one process with 1 GPU, and this job has {has}; submit a job for each GPU"
    if not spec.time_limit_s:
        yield "deployment: a lease has a time limit, and this job has none; add time_limit_s, or leave deployment out"


def _worker_problems(spec: JobSpec) -> Iterator[str]:
    """Errors in the number of a co-located job's workers."""
    least, most = spec.worker_range
    if spec.workers and not _WORKERS.fullmatch(spec.workers):
        yield f"workers: '{spec.workers:.20}' is no number of nodes; write the fewest and the most, such as 1-4"
    elif most < least:
        yield f"workers: {spec.workers} has the most before the fewest; write {most}-{least}"
    elif most > GROUP_NODES_MAX:
        yield f"workers: {most:,} nodes, and a group has at most {GROUP_NODES_MAX}; ask for fewer"


def _text_problems(spec: JobSpec) -> Iterator[str]:
    """Errors in arguments and environment that Linux does not take."""
    arguments = _all_arguments(spec)
    if not spec.argv or not spec.argv[0]:
        yield "argv: is empty; name the program to run"
    elif sum(map(_size_bytes, arguments)) > MAX_ARGUMENT_BYTES:
        yield f"argv: is longer than {MAX_ARGUMENT_BYTES} bytes; put it in a file"
    elif any(_size_bytes(one) > ARGUMENT_CHARS_MAX for one in arguments):
        yield f"argv: one argument is longer than the {ARGUMENT_CHARS_MAX} bytes that Linux takes; put it in a file"
    if any(len(argv) > ARGUMENTS_MAX for argv in (spec.argv, *(role.argv for role in spec.roles))):
        yield f"argv: has more than {ARGUMENTS_MAX} arguments; put them in a file"
    variables = [_size_bytes(f"{name}={value}") for name, value in spec.env.items()]
    if sum(variables) > MAX_ENVIRONMENT_BYTES:
        yield f"env: is longer than {MAX_ENVIRONMENT_BYTES} bytes; put it in a file"
    elif any(size_bytes > ARGUMENT_CHARS_MAX for size_bytes in variables):
        yield f"env: one variable is longer than the {ARGUMENT_CHARS_MAX} bytes that Linux takes; put it in a file"
    wrong = next((name for name in spec.env if not _VARIABLE.match(name)), None)
    if wrong is not None:
        yield f"env: {wrong[:60]!r} is not a name of a variable; they are letters, digits and _, no digit first"
    texts = (*arguments, *spec.env, *spec.env.values(), spec.cwd, spec.output, spec.checkpoint_dir)
    if any("\0" in text for text in texts):
        yield "a text contains a zero byte, which no program can be given"


def _size_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def _all_arguments(spec: JobSpec) -> tuple[str, ...]:
    return (*spec.argv, *(word for role in spec.roles[1:] for word in role.argv))


def array_problems(spec: JobSpec, count: int) -> Iterator[str]:
    """Errors of ``count`` identical jobs, where one alone may be right."""
    waits = len(spec.after) * count
    if waits > MAX_AFTER_IN_ALL:
        each = f"{format_count(len(spec.after), 'job')} for each of {count:,}"
        yield f"after: {each} are more than {MAX_AFTER_IN_ALL:,} in all; wait for one that waits for them"
