"""Parser of ``scontrol --oneliner --details show job | node | partition``: one line each, of ``Key=value``. PURE.

A job's name may hold anything, blanks, equals signs and line breaks too, and nobody quotes it. So a line that has one
of the keys read here twice is that of a job of no partition: what it holds counts, and nobody touches it. The same goes
for a job that has two lines, as one of them may be in another job's name. A line that can't be read costs the job that
it tells of, and no other. [M7] Times must be seconds (SLURM_TIME_FORMAT=%s).
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from farside.config.hostlist import expand
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob, SlurmNode, Traits, limit_of
from farside.scheduler.slurm.tres import gpus_asked, gpus_of, held_by_node, memory_bytes_of, model_of

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_/:]*)=")
_DETAIL = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_BINDING = ("ReqNodeList", "ExcNodeList", "Features", "Licenses", "Reservation", "TresPerSocket")
_NOTHING = frozenset({"", "(null)", "N/A", "None", "Unknown"})
_MIB = 1 << 20

_STATES = {
    JobPhase.WAITING: ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"),
    JobPhase.RUNNING: ("RUNNING",),
    JobPhase.STUCK: ("CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"),
}
PHASES: Mapping[str, JobPhase] = {state: phase for phase, states in _STATES.items() for state in states}


def jobs_of(text: str) -> tuple[SlurmJob, ...]:
    """All jobs of a text that can be read.

    Raises:
        ValueError: None can, and there are some.
    """
    found: dict[str, SlurmJob] = {}
    problem: ValueError | None = None
    for line in _lines(text, "JobId="):
        try:
            job = _job(line)
        except ValueError as error:
            problem = error
            continue
        before = found.get(job.job_id)
        found[job.job_id] = job if before is None else replace(before, partitions=())
    if problem is not None and not found:
        raise problem
    return tuple(found.values())


def nodes_of(text: str) -> Mapping[str, SlurmNode]:
    """All nodes of a text by their names.

    Raises:
        ValueError: A line is no node.
    """
    return {node.name: node for line in _lines(text, "NodeName=") for node in (_node(line),)}


def partitions_of(text: str) -> Mapping[str, tuple[str, ...]]:
    """The nodes of all partitions of a text.

    Raises:
        ValueError: A line is no partition.
    """
    found = (_pairs(line) for line in _lines(text, "PartitionName="))
    return {told["PartitionName"]: expand(_text(told, "Nodes")) for told in found}


def traits_of(text: str) -> Traits:
    """Settings in the output of ``scontrol show config``."""
    lines = (line.partition("=") for line in _lines(text))
    told = {key.strip(): value.strip() for key, equals, value in lines if equals}
    program = told.get("SuspendProgram", "")
    return Traits(
        version=told.get("SLURM_VERSION", ""),
        is_counting_memory="MEMORY" in told.get("SelectTypeParameters", "").upper(),
        has_power_saving=program not in _NOTHING,
        slurm_user=told.get("SlurmUser", "").partition("(")[0],
        has_accounting=told.get("AccountingStorageType", "") == "accounting_storage/slurmdbd",
    )


def phase_of(state: str) -> JobPhase:
    """Where a job in one of Slurm's states is."""
    return PHASES.get(state, JobPhase.OVER)


# ---------------------------------------------------------------- lines


def _lines(text: str, begin: str = "") -> Iterator[str]:
    """Lines that begin so. Not by `splitlines`, which ends a line at characters that any user's text may have."""
    return (line for line in text.split("\n") if line.startswith(begin))


class _Fields(dict[str, str]):
    """Keys and values of a line. One that is not there makes it no such line."""

    def __missing__(self, key: str) -> str:
        raise ValueError(f"a line has no {key}: {next(iter(self.values()), '')[:60]}")


def _pairs(line: str) -> _Fields:
    """Keys and values of a line; the first value of a key that is there twice, and the key in the value of ''."""
    starts = list(_KEY.finditer(line))
    pairs = _Fields({"": ""})
    for at, match in enumerate(starts):
        end = starts[at + 1].start() if at + 1 < len(starts) else len(line)
        if match.group(1) in pairs:
            pairs[""] += f" {match.group(1)}"
        else:
            pairs[match.group(1)] = line[match.end() : end].strip()
    return pairs


def _job(line: str) -> SlurmJob:
    details = _DETAIL.findall(line)
    line = _DETAIL.sub("", line)
    told = _pairs(line)
    tasks = told.get("ArrayTaskId", "")
    gpus, model = gpus_asked(
        job=_text(told, "TresPerJob"), node=_text(told, "TresPerNode"), task=_text(told, "TresPerTask"),
        tres=_text(told, "TRES") or _text(told, "ReqTRES"), nodes=_count(told.get("NumNodes", "1")),
        tasks=_count(told.get("NumTasks", "1")),
    )  # fmt: skip
    phase = phase_of(told["JobState"])
    tres = _text(told, "TRES") or _text(told, "AllocTRES") or _text(told, "ReqTRES")
    return SlurmJob(
        job_id=told["JobId"],
        name=told["JobName"],
        user=told["UserId"].partition("(")[0],
        partitions=() if told[""] else tuple(told["Partition"].split(",")),
        phase=phase,
        reason=_text(told, "Reason") or "None",
        submit_s=_moment(told["SubmitTime"]),
        eligible_s=_moment(told["EligibleTime"]),
        start_s=_moment(told["StartTime"]) if phase is not JobPhase.WAITING else math.nan,
        end_s=_moment(told["EndTime"]) if phase is JobPhase.OVER else math.nan,
        limit_s=limit_of(_clock_s(told["TimeLimit"])),
        gpus=gpus,
        gpu_model=model,
        cpus=_count(told["NumCPUs"]),
        memory_bytes=memory_bytes_of(tres),
        held=_held(phase, _text(told, "NodeList"), details, gpus),
        priority=int(told["Priority"]),
        nice=int(told.get("Nice", "0")),
        admin_comment=_text(told, "AdminComment"),
        restarts=int(told["Restarts"]),
        is_array=not tasks.isdigit() and bool(tasks),
        is_bound=any(_text(told, key) for key in _BINDING),
        is_requeueable=told["Requeue"] == "1" and told["BatchFlag"] == "1",
    )


def _held(phase: JobPhase, hosts: str, details: list[tuple[str, str]], gpus: int) -> tuple[tuple[str, int], ...]:
    if phase not in (JobPhase.RUNNING, JobPhase.STUCK):
        return ()
    by_node = {name: gpus_of(gres) for names, gres in details for name in expand(names)}
    texts = [f"gpu:{by_node[name]}" if by_node[name] else "" for name in expand(hosts) if name in by_node]
    return held_by_node(hosts, texts, gpus)


def _node(line: str) -> SlurmNode:
    told = _pairs(line)
    gres = _text(told, "Gres")
    return SlurmNode(
        name=told["NodeName"],
        flags=frozenset(flag.rstrip("*~#%$@!^-") for flag in told["State"].split("+")),
        gpus=gpus_of(gres),
        gpus_used=gpus_of(_text(told, "GresUsed")),
        gpu_model=model_of(gres),
        cpus=int(told.get("CPUEfctv") or told["CPUTot"]),
        cpus_used=int(told["CPUAlloc"]),
        memory_bytes=float(told["RealMemory"]) * _MIB,
        memory_used_bytes=float(told["AllocMem"]) * _MIB,
    )


# ---------------------------------------------------------------- values


def _text(told: _Fields, key: str) -> str:
    value = told.get(key, "")
    return "" if value in _NOTHING else value


def _moment(text: str) -> float:
    return float(text) if text.isdigit() and text != "0" else math.nan


def _count(text: str) -> int:
    """The lower end of a range, ``2-4``; ``1`` if it is not a range."""
    digits = text.partition("-")[0]
    return int(digits) if digits.isdigit() else 1


def _clock_s(text: str) -> float:
    found = _CLOCK.fullmatch(text)
    if found is None:
        return math.inf  # UNLIMITED, Partition_Limit
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
