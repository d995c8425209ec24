"""The next step of a job after what was reported: it ends, stops, or waits again. PURE.

The scheduler process asks this of each job that something happened to, writes the answer into the log, and asks again,
as each answer is something that happened. So it never has to think further than one step.
"""

from collections.abc import Iterable

from farside.agent.messages import NOT_STARTED, EndKind
from farside.scheduler.admission.idle_gpus import NO_IDLE_RULES, IdleRules
from farside.scheduler.manager.decider.idle_jobs import IdleStep, idle_step
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.record import IDLE, LiveJob, LiveTask, Phase
from farside.scheduler.manager.model.state import LiveState
from farside.units import format_seconds

SIGKILL = 9
# What an agent says of a process that it was told to stop.
_STOPPED = frozenset(cause.value for cause in log.StopCause)
# Why a job is stopped so that it ends, and how it has ended then.
_ENDINGS = {log.StopCause.TIME_LIMIT: log.Ending.TIMED_OUT, log.StopCause.IDLE_GPUS: log.Ending.CANCELLED}
# A job whose nodes are lost under it is started again, but not for ever: it may be what breaks them.
MAX_LOSSES = 10


Step = log.JobEnded | log.JobRequeued | log.JobStopping | log.AllocationReleased | IdleStep
"""What may follow for a job."""


def consequences(
    state: LiveState, touched: Iterable[str], now_s: float, idle: IdleRules = NO_IDLE_RULES
) -> tuple[Step, ...]:
    """The next step of each of these jobs that has one; ``idle``: what is done about idle GPUs."""
    found = (_next_step(state, state.jobs[job_id], now_s, idle) for job_id in touched)
    return tuple(event for event in found if event is not None)


def limit_at_s(job: LiveJob) -> float | None:
    """When a job that holds GPUs will have held them for as long as it may; None: it may for ever."""
    if not job.spec.time_limit_s or job.phase not in (Phase.STARTING, Phase.RUNNING):
        return None
    return job.limit_at_s


def _next_step(state: LiveState, job: LiveJob, now_s: float, idle: IdleRules) -> Step | None:
    if job.is_over:
        return None
    if job.phase in IDLE:
        return _of_idle(state, job)
    if job.phase is Phase.ALLOCATED:
        return _of_allocated(state, job)
    if job.phase is Phase.STOPPING:
        return _of_stopping(state, job)
    return _of_running(state, job, now_s) or idle_step(job, idle, now_s)


def _of_idle(state: LiveState, job: LiveJob) -> Step | None:
    if job.cancelled_by:
        return _cancelled(job)
    for other in job.spec.after:
        before = state.jobs.get(other)
        if before is None or (before.is_over and before.phase is not Phase.DONE):
            became = "is not known" if before is None else f"ended as {before.phase}"
            reason = f"job {other}, which it waits for, {became}"
            return log.JobEnded(job_id=job.job_id, ending=log.Ending.CANCELLED, reason=reason)
    return None


def _of_allocated(state: LiveState, job: LiveJob) -> Step | None:
    if job.cancelled_by:
        return _cancelled(job)
    if job.held_by:
        return log.AllocationReleased(job_id=job.job_id, reason="it had not started yet")
    for place in job.places:
        node = state.nodes[place.node]
        if not node.is_taking:
            return log.AllocationReleased(
                job_id=job.job_id, reason=f"it lost its allocation before it started: {node.name}: {node.why_not}"
            )
    return None


def _cancelled(job: LiveJob, exit_code: int | None = None) -> log.JobEnded:
    reason = f"cancelled by {job.cancelled_by}"
    return log.JobEnded(job_id=job.job_id, ending=log.Ending.CANCELLED, reason=reason, exit_code=exit_code)


def _of_running(state: LiveState, job: LiveJob, now_s: float) -> Step | None:
    # Checked before a cancellation: work that is done stays done, even if somebody cancels the job at the same moment.
    if all(task.phase is log.TaskPhase.EXITED and task.exit_code == 0 for task in job.workers):
        if all(task.is_gone for task in job.tasks):
            return _done(job)
        return _stop(job, log.StopCause.WORK_DONE, "all others ended well, and its services are stopped")
    if job.cancelled_by:
        return _stop(job, log.StopCause.CANCELLED, f"cancelled by {job.cancelled_by}")
    workers = job.workers
    for task in job.tasks:
        if task.phase is log.TaskPhase.LOST:
            return _stop(job, log.StopCause.NODE_LOST, f"{_named(task)} was lost: {task.cause}")
        if task.has_failed and task.end_kind is EndKind.UNPREPARED:
            return _stop(job, log.StopCause.NODE_UNFIT, f"node {task.node} could not be prepared: {task.cause}")
        if task.has_failed and task.end_kind is EndKind.TIME_LIMIT:
            return _stop(job, log.StopCause.TIME_LIMIT, _over_limit(job))
        if task.has_failed:
            return _stop(job, log.StopCause.TASK_FAILED, f"{_named(task)} {_end_of(task)}")
        if task.is_gone and task not in workers:
            return _stop(job, log.StopCause.TASK_FAILED, f"{_named(task)}, a service, ended while the others needed it")
    for task in job.tasks:
        node = state.nodes[task.node]
        if not task.is_gone and not node.is_up:
            return _stop(job, log.StopCause.NODE_LOST, f"node {node.name} was lost: {node.lost_reason}")
    # Agents enforce the limit too, and report it as an end of kind TIME_LIMIT (above).
    limit_s = limit_at_s(job)
    if limit_s is not None and limit_s <= now_s:
        return _stop(job, log.StopCause.TIME_LIMIT, _over_limit(job))
    return None


def _named(task: LiveTask) -> str:
    return f"rank {task.rank}{f' ({task.role} {task.role_rank})' if task.role else ''} on {task.node}"


def _done(job: LiveJob) -> log.JobEnded:
    return log.JobEnded(job_id=job.job_id, ending=log.Ending.DONE, reason="all its processes ended well", exit_code=0)


def _stop(job: LiveJob, cause: log.StopCause, reason: str) -> log.JobStopping:
    return log.JobStopping(job_id=job.job_id, start=job.start, cause=cause, reason=reason)


def _over_limit(job: LiveJob) -> str:
    return f"it has held its GPUs for its time limit of {format_seconds(job.limit_s)}"


def _of_stopping(state: LiveState, job: LiveJob) -> Step | None:
    # Processes on a node that is down can't be waited for; its agent stops them when it comes back.
    if any(not task.is_gone and state.nodes[task.node].is_up for task in job.tasks):
        return None
    code = _exit_code(job)
    if all(task.phase is log.TaskPhase.EXITED and task.exit_code == 0 and not task.cause for task in job.workers):
        # Only services were left, or it was done before the signal reached it.
        return _done(job)
    if job.cancelled_by:
        return _cancelled(job, code)
    ending = None if job.stop_cause is None else _ENDINGS.get(job.stop_cause)
    if ending is not None:
        reason = f"{job.reason}; {_killed(job)}" if _was_killed(job) else job.reason
        return log.JobEnded(job_id=job.job_id, ending=ending, reason=reason, exit_code=code)
    if job.stop_cause is log.StopCause.TASK_FAILED:
        if job.failures >= job.spec.retries:
            return log.JobEnded(job_id=job.job_id, ending=log.Ending.FAILED, reason=job.reason, exit_code=code)
        reason = f"{job.reason}; failure {job.failures + 1}, of which {job.spec.retries} are forgiven"
        return log.JobRequeued(job_id=job.job_id, start=job.start, reason=reason, is_failure=True)
    # All starts that ended neither by a preemption nor by a failure of the job itself.
    losses = job.start - job.preemptions - job.failures
    if job.stop_cause in (log.StopCause.NODE_LOST, log.StopCause.NODE_UNFIT) and losses > MAX_LOSSES:
        reason = f"{job.reason}; that was the {MAX_LOSSES + 1}th time, and it is not started again"
        return log.JobEnded(job_id=job.job_id, ending=log.Ending.FAILED, reason=reason, exit_code=code)
    return log.JobRequeued(job_id=job.job_id, start=job.start, reason=_why_again(job))


def _why_again(job: LiveJob) -> str:
    if job.stop_cause is log.StopCause.PREEMPTED and _was_killed(job):
        return f"{job.reason}; {_killed(job)}: what it did since its last checkpoint is lost"
    return job.reason


def _was_killed(job: LiveJob) -> bool:
    return any(task.signal == SIGKILL for task in job.tasks)


def _killed(job: LiveJob) -> str:
    return f"it did not end within {format_seconds(job.spec.grace_s)} and was killed"


def _exit_code(job: LiveJob) -> int | None:
    """That of the first process that failed, as a shell gives it: 128 and the signal."""
    ended = [task for task in job.tasks if task.phase is log.TaskPhase.EXITED and task.exit_code != 0]
    # The others were stopped because of it, and bear that as their cause.
    failed = next((task for task in ended if task.cause not in _STOPPED), ended[0] if ended else None)
    if failed is None:
        return 0 if all(task.phase is log.TaskPhase.EXITED for task in job.tasks) else None
    return 128 + failed.signal if failed.signal is not None else failed.exit_code


def _end_of(task: LiveTask) -> str:
    if task.end_kind is EndKind.NOT_EXECUTED:
        return task.cause
    if task.signal is None and task.exit_code is None:
        return NOT_STARTED + task.cause
    return f"was ended by signal {task.signal}" if task.signal is not None else f"ended with exit code {task.exit_code}"
