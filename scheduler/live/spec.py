"""What a user asks for: one job, as it is submitted and kept in the log. PURE."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from farside.agent.messages import ARGUMENT_CHARS_MAX, ARGUMENTS_MAX, VARIABLES_MAX
from farside.scheduler.live.role import Role, gpus_of, per_gpu, role_problems
from farside.units import format_count

# What lies above is a slip of the hand. The message that starts a task on a node holds 1 MiB, all of this included.
MAX_ARGUMENT_BYTES = 256 * 1024
MAX_ENVIRONMENT_BYTES = 256 * 1024
MAX_GPUS = 100_000
MAX_COUNT = 100_000
MAX_NAME = 128
MAX_PATH = 4096
MAX_RETRIES = 1000
MAX_GRACE_S = 3600.0
MAX_TIME_LIMIT_S = 4e9  # 126 years, as much as agents take
MAX_AFTER = 1000
# Of a job times its count: each of the jobs is told of each that ends.
MAX_AFTER_IN_ALL = 100_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}\Z")


class Ranks(StrEnum):
    """How many processes a job has: one on each of its nodes, or one for each of its GPUs."""

    NODE = "node"
    GPU = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as its user described it.

    Attributes:
        argv: Program and arguments, run without a shell.
        gpus: All that it holds, over all nodes; the job starts with all of them or not at all.
        name: What listings call it; the program's name where it is empty.
        account: Whom its GPU hours are charged to; the user where it is empty.
        qos: Its quality of service; empty: none, or the manager's default once it is submitted.
        cwd: Folder it is started in.
        env: Variables besides those that Farside sets.
        ranks: Whether each node or each GPU gets a process.
        gpu_model: Only GPUs of this model will do; empty: any.
        cpus_per_gpu: CPUs it needs for each GPU; 0: not counted.
        memory_bytes_per_gpu: Memory it needs for each GPU; 0: not counted.
        swap_bytes_per_gpu: Farside swap that it may use beyond that, for each GPU; 0: none.
        time_limit_s: It is ended once it has held its GPUs this long; 0: never.
        grace_s: Time between SIGTERM and SIGKILL when it has to stop.
        preemptible: Whether others may take its GPUs.
        checkpoint_dir: Folder that all nodes share; a job that is resumed finds its checkpoint there.
        output: Path of its output, ``%j`` the job, ``%r`` the rank; empty: ``farside-%j.%r.log`` in ``cwd``.
        retries: How often it is started again after it failed by itself.
        after: Jobs that must have ended well before it may start.
        roles: Processes that are not alike (role.py); then ``argv`` is the first role's, and ``ranks`` means nothing.
        model: What it trains, where that is one that the placement knows (model_zoo.py); empty: something else.
        profile: Whether what its processes send is noted; None: at first, where jobs are placed by skew.
    """

    argv: tuple[str, ...]
    gpus: int = 1
    name: str = ""
    account: str = ""
    qos: str = ""
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: Ranks = Ranks.NODE
    gpu_model: str = ""
    cpus_per_gpu: float = 0.0
    memory_bytes_per_gpu: float = 0.0
    swap_bytes_per_gpu: float = 0.0
    time_limit_s: float = 0.0
    grace_s: float = 30.0
    preemptible: bool = True
    checkpoint_dir: str = ""
    output: str = ""
    retries: int = 0
    after: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    model: str = ""
    profile: bool | None = None

    def role(self, name: str) -> Role | None:
        """The role of that name; None of a job without roles."""
        return next((role for role in self.roles if role.name == name), None)

    @property
    def title(self) -> str:
        """Its name, or that of its program."""
        return self.name or self.argv[0].rsplit("/", 1)[-1]

    @property
    def size_bytes(self) -> int:
        """What its texts that may be long take, wherever it is kept."""
        texts = (*_all_arguments(self), *self.env, *self.env.values(), *self.after)
        return sum(len(text.encode(errors="replace")) for text in texts)

    def output_path(self, job_id: str, rank: int) -> str:
        """Where a rank's output goes."""
        pattern = self.output or "farside-%j.%r.log"
        path = pattern.replace("%j", job_id).replace("%r", str(rank))
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"


# fmt: off (a table: what is wrong when the condition holds)
def spec_problems(spec: JobSpec) -> Iterator[str]:
    """What is wrong with a job, whatever the cluster; each line names the key and what to do."""
    if not spec.argv or not spec.argv[0]:
        yield "argv: is empty; name the program to run"
    elif sum(len(one.encode(errors="replace")) for one in _all_arguments(spec)) > MAX_ARGUMENT_BYTES:
        yield f"argv: is longer than {MAX_ARGUMENT_BYTES} bytes; put it in a file"
    elif any(len(one.encode(errors="replace")) > ARGUMENT_CHARS_MAX for one in _all_arguments(spec)):
        yield f"argv: one argument is longer than the {ARGUMENT_CHARS_MAX} bytes that Linux takes; put it in a file"
    if any(len(argv) > ARGUMENTS_MAX for argv in (spec.argv, *(role.argv for role in spec.roles))):
        yield f"argv: has more than {ARGUMENTS_MAX} arguments; put them in a file"
    if not 1 <= spec.gpus <= MAX_GPUS:
        yield f"gpus: must be 1 to {MAX_GPUS}, is {spec.gpus}"
    if sum(len(f"{name}={value}".encode(errors="replace")) for name, value in spec.env.items()) > MAX_ENVIRONMENT_BYTES:
        yield f"env: is longer than {MAX_ENVIRONMENT_BYTES} bytes; put it in a file"
    elif any(len(f"{name}={value}".encode(errors="replace")) > ARGUMENT_CHARS_MAX for name, value in spec.env.items()):
        yield f"env: one variable is longer than the {ARGUMENT_CHARS_MAX} bytes that Linux takes; put it in a file"
    if len(spec.env) > VARIABLES_MAX:
        yield f"env: has more than {VARIABLES_MAX} variables; put them in a file"
    for name in spec.env:
        if not _VARIABLE.match(name):
            yield f"env: {name[:60]!r} is no name of a variable; they are letters, digits and _, no digit first"
            break
    for text in (*_all_arguments(spec), *spec.env, *spec.env.values(), spec.cwd, spec.output, spec.checkpoint_dir):
        if "\0" in text:
            yield "a text contains a zero byte, which no program can be given"
            break
    for key in ("name", "account", "qos", "gpu_model", "model"):
        text = getattr(spec, key)
        if len(text) > MAX_NAME or not text.isprintable():
            yield f"{key}: must be one line of at most {MAX_NAME} printable characters"
    for key in ("cwd", "output", "checkpoint_dir"):
        if len(getattr(spec, key).encode(errors="replace")) > MAX_PATH:
            yield f"{key}: is longer than the {MAX_PATH} bytes of a path"
    if not spec.cwd.startswith("/"):
        yield f"cwd: must be an absolute path, is '{spec.cwd:.60}'"
    if spec.checkpoint_dir and not spec.checkpoint_dir.startswith("/"):
        yield f"checkpoint_dir: must be an absolute path, is '{spec.checkpoint_dir:.60}'"
    for key in ("cpus_per_gpu", "memory_bytes_per_gpu", "swap_bytes_per_gpu"):
        if not 0 <= getattr(spec, key) < 1e18:
            yield f"{key}: must be 0 or more, is {getattr(spec, key)}"
    if spec.swap_bytes_per_gpu and not spec.memory_bytes_per_gpu:
        yield "swap: a job swaps what goes beyond its memory; say how much that is, by memory_per_gpu"
    if not 0 <= spec.time_limit_s <= MAX_TIME_LIMIT_S:
        yield f"time_limit_s: must be 0 to {MAX_TIME_LIMIT_S:g} seconds, is {spec.time_limit_s:g}; 0 is none"
    if not 0 <= spec.grace_s <= MAX_GRACE_S:
        yield f"grace_s: must be 0 to {MAX_GRACE_S:g} seconds, is {spec.grace_s:g}"
    if not 0 <= spec.retries <= MAX_RETRIES:
        yield f"retries: must be 0 to {MAX_RETRIES}, is {spec.retries}"
    if len(spec.after) > MAX_AFTER:
        yield f"after: at most {MAX_AFTER:,} jobs, not {len(spec.after):,}; wait for one that waits for them"
    if spec.roles:
        yield from role_problems(spec.roles)
        if spec.argv != spec.roles[0].argv:
            yield "argv: each role has its own; leave it out"
        if spec.gpus != gpus_of(spec.roles):
            yield f"gpus: the roles ask for {gpus_of(spec.roles)} in all, not {spec.gpus}; leave it out"
        for key in ("cpus_per_gpu", "memory_bytes_per_gpu", "swap_bytes_per_gpu"):
            if getattr(spec, key) != per_gpu(spec.roles, key.removesuffix("_per_gpu")):
                yield f"{key}: each role has its own cpus, memory_bytes and swap_bytes; leave it out"


# fmt: on


def _all_arguments(spec: JobSpec) -> tuple[str, ...]:
    return (*spec.argv, *(word for role in spec.roles[1:] for word in role.argv))


def array_problems(spec: JobSpec, count: int) -> Iterator[str]:
    """What is wrong with so many of a job, though one alone may be right."""
    waits = len(spec.after) * count
    if waits > MAX_AFTER_IN_ALL:
        each = f"{format_count(len(spec.after), 'job')} for each of {count:,}"
        yield f"after: {each} are more than {MAX_AFTER_IN_ALL:,} in all; wait for one that waits for them"


def gpus_text(gpus: int) -> str:
    """``1 GPU``, ``16 GPUs``."""
    return format_count(gpus, "GPU")
