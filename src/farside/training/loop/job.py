"""`farside.training.begin`: the loop of an iterative program, which pulls sums, computes by blocks, and pushes.

How it works
  Iteration i pulls what all workers pushed in iteration i - 1, or before the first one. All of them see the same sums
  and update their copy of the model alike, so there is nobody to ask for it. With each push goes a worker's word
  (`agreement.py`): stop, fail and checkpoint happen at the same iteration everywhere.
  A checkpoint is made between a pull and the update: it has the sums, the model before them and the state of blocks,
  and who goes on from it gets these sums from its first pull. [harmony §IV-B4, §VI]
"""

import hashlib
import math
import os
import secrets
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from farside.agent.training.subtask import INIT_COMP, INIT_PUSH, position_of
from farside.errors import ConfigError, FarsideError, PeerError
from farside.log import get_log
from farside.training.iteration_report import IterationReport
from farside.training.loop.agreement import Agreed, Word, agreed, numbers_of, size_of
from farside.training.loop.block import Arrays, Block, OwnBlocks, blocks_of
from farside.training.loop.checkpoint import Checkpoints, Restored
from farside.training.loop.ended import Diverged, Paused, WorkerFailed
from farside.training.loop.push_pull import ByAggregators, Key, OneWorker, PushPull, checked, keys_of
from farside.training.loop.spilling import Spills, SpillsNothing, spill_place_for, spilled
from farside.training.loop.turns import EXECUTOR, NoTurns, SharedNode, Turns
from farside.training.member import PlanSource
from farside.training.relay_plan import SOCKET as RELAY_SOCKET
from farside.training.static_plan import SERVICE, static_plan_from

_log = get_log("training")
T = TypeVar("T")

CHECKPOINT_DIR, CHECKPOINT_S = "FARSIDE_CHECKPOINT_DIR", "FARSIDE_CHECKPOINT_S"
CHECKPOINT_DEFAULT_S = 30.0
COMPLETE_LIMIT_S = 30.0
"""For all ranks' files of the last checkpoint."""
FAIL_LIMIT_S = 5.0
"""For the others to push, once this worker has failed."""
COMPARE_EVERY = 50
"""Iterations after which workers compare their models."""
_AGREEMENT = "farside.agreement"

State = Literal["new", "pushed", "pulled"]


def begin(
    blocks: Sequence[T],
    *,
    keys: Mapping[str, Any],
    iterations: int,
    fingerprint: str = "",
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_s: float | None = None,
) -> "Job[T]":
    """The loop of this process's job: a context manager that connects on the way in.

    Args:
        blocks: The whole input: ``blocks[i]`` is asked of for this worker's blocks alone. Their number must not depend
            on how many workers there are.
        keys: What is pushed and pulled, by name: a shape, for float64, or an array of that shape and format (float64,
            float32, int64 or int32).
        iterations: How many, at most.
        fingerprint: Program, input and options in words; only a checkpoint with the same ones is gone on from. Empty:
            the name and a check sum of the program's file.
        checkpoint_dir: Where checkpoints go; None: as FARSIDE_CHECKPOINT_DIR says, and if that is not set, nowhere.
        checkpoint_s: Seconds from one to the next; None: as FARSIDE_CHECKPOINT_S says, otherwise 30. 0: each iteration.

    Raises:
        ConfigError: in one line.
    """
    if len(blocks) < 1:
        raise ConfigError("the input has no blocks")
    if iterations < 1:
        raise ConfigError(f"iterations: is {iterations}; at least 1 is needed")
    folder = checkpoint_dir if checkpoint_dir is not None else os.environ.get(CHECKPOINT_DIR)
    every_s = _seconds(checkpoint_s)
    source = _source()
    rank, workers = (source.rank, source.members) if source is not None else (0, 1)
    if workers > len(blocks):
        raise ConfigError(f"{workers} workers for {len(blocks)} input blocks; a worker needs at least one")
    checkpoints = None
    if folder:
        checkpoints = Checkpoints(
            Path(folder), fingerprint=fingerprint or _program(), blocks=len(blocks), rank=rank, workers=workers
        )  # fmt: skip
    place = spill_place_for(blocks)
    turns: Turns = NoTurns()
    if os.environ.get(EXECUTOR):
        name = source.job if source is not None else f"{os.environ.get('FARSIDE_JOB') or 'train'}-{os.getpid()}"
        turns = SharedNode(
            os.environ[EXECUTOR], job=name, worker=rank, workers=workers, spills=place is not None
        )  # fmt: skip
    summed = keys_of(keys)
    own, spills = spilled(place, blocks, blocks_of(rank, workers, len(blocks)), turns)
    return Job(
        own, summed, source, iterations=iterations, checkpoints=checkpoints, checkpoint_s=every_s, turns=turns,
        spills=spills,
    )  # fmt: skip


class Job(Generic[T], AbstractContextManager["Job[T]"]):
    """One worker's loop. ``model``: arrays of the program's, the same at all workers; checkpoints have them.

    Attributes:
        rank: This worker's number, from 0.
        workers: How many there are.
        iteration: The iteration that is under way, from 0; after the loop, how many were made.
        model: See above.
    """

    def __init__(
        self,
        own: OwnBlocks[T],
        keys: Sequence[Key],
        source: PlanSource | None,
        *,
        iterations: int,
        checkpoints: Checkpoints | None,
        checkpoint_s: float,
        turns: Turns,
        spills: Spills | None = None,
    ) -> None:
        self.rank, self.workers = (source.rank, source.members) if source is not None else (0, 1)
        self.iteration = -1
        self.model: Arrays = {}
        self._own, self._source = own, source
        self._keys = keys
        agreement = Key(name=_AGREEMENT, shape=(size_of(self.workers),), dtype=np.dtype(np.int64))
        self._all_keys = (*keys, agreement)
        self._iterations = self._asked = iterations
        self._finished: int | None = None
        self._turns, self._spills = turns, spills or SpillsNothing()
        self._net_s = self._computes_from_s = 0.0
        self._began = 0  # positions of subtasks count from where this start begins
        self._checkpoints, self._checkpoint_s = checkpoints, checkpoint_s
        self._report = IterationReport()
        self._sums: PushPull | None = None
        self._state: State = "new"
        self._restored: Restored | None = None
        self._resumed: int | None = None
        self._run = 1 + secrets.randbits(30) if self.rank == 0 else 0
        self._wants_stop = False
        self._kept_s = time.monotonic()
        self._before: Any = None

    def __enter__(self) -> "Job[T]":
        if self._checkpoints is not None:
            self._restored = self._checkpoints.newest(self._own.numbers)
            if self._restored is not None:
                self._check_sums(self._restored)
                self._take(self._restored)
        self._sums = OneWorker() if self._source is None else ByAggregators(self._source, self._all_keys)
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_term)
        self._turns.ask(INIT_COMP)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.close()
        try:
            if error is not None and not isinstance(error, Paused | WorkerFailed | Diverged | PeerError):
                self._say_failed()
            elif error is None and not self._is_over:
                self._leave_early()
            elif error is None:
                self._close_checkpoint()
        finally:
            self._report.close()
            self._own.close()
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)
            if self._sums is not None:
                self._sums.close()

    @property
    def is_new(self) -> bool:
        """Whether the job begins here, rather than going on from a checkpoint."""
        return self._resumed is None

    @property
    def is_last(self) -> bool:
        """Whether this iteration is the last one."""
        return self.iteration >= self._iterations - 1

    def blocks(self) -> Iterator[Block[T]]:
        """This worker's blocks, in the order of their numbers."""
        return iter(self._own)

    def goes_on(self) -> bool:
        """Whether another iteration begins."""
        if self.iteration >= self._iterations - 1:
            self.iteration = max(self.iteration, self._iterations)
            return False
        self.iteration += 1
        return True

    def finish(self) -> None:
        """This iteration is the last one; all workers must call it in the same one, by what they have pulled.

        Checkpoints have it: a job that is started again after this iteration has ended.
        """
        self._iterations = self._finished = self.iteration + 1

    @property
    def is_finished(self) -> bool:
        """Whether `finish` was called, by the checkpoint's job too."""
        return self._finished is not None

    def reopen(self) -> None:
        """Takes a `finish` back, so that the job goes on; all workers must call it, before their loops."""
        self._iterations, self._finished = self._asked, None

    def diverged(self, what: str, value: float) -> None:
        """Ends the job at all workers: a sum that all of them have pulled is not finite.

        Raises:
            Diverged: always.
        """
        raise Diverged(
            f"{what} is {value} after iteration {self.iteration}",
            hint="the input's scale or the options do not fit the program; nothing of this iteration is kept",
        )

    def pull(self) -> Arrays:
        """What all workers have pushed last, summed in the order of ranks; zeros where nothing was pushed before.

        Returns:
            For each key an array of its shape, which is the caller's.

        Raises:
            Paused: all workers stop here; a checkpoint is made first, where there is a folder for it.
            WorkerFailed: the program of some worker has raised an error.
            FarsideError: the job can't go on.
        """
        if self._state == "new":
            self.push({key.name: np.zeros(key.shape, key.dtype) for key in self._keys})
        if self._state != "pushed":
            raise ConfigError("pull without a push before it", hint="push once in each iteration, then pull")
        self._turns.ask(self._position("PULL"))
        began_s = time.monotonic()
        found = self._opened.pull(self._turns.give_way)
        self._net_s = time.monotonic() - began_s
        self._turns.done()
        self._state = "pulled"
        self._spills.pulled(self.model)
        said = agreed(found.pop(_AGREEMENT).tolist(), self.workers)
        self._run = said.run
        self._check(said)
        if self._restored is not None:
            self._check_iterations(self._restored)  # here, where all workers are known to have the same one
            # These sums were pulled before the checkpoint was made.
            found, self._restored = dict(self._restored.sums), None
        elif self._checkpoints is not None and self.iteration >= 0 and (said.keeps or said.stops or self._is_over):
            self._keep(self._checkpoints, found)
        if self._checkpoints is not None and self.rank == 0:
            self._checkpoints.complete()
        if said.stops:
            self._pause()
        if not self._is_over:
            self._turns.ask(self._position("COMP"))
            self._computes_from_s = time.monotonic()
        return found

    def push(self, parts: Mapping[str, Any]) -> None:
        """Hands in this worker's part of each key's sum; once an iteration, and once before the first one, if at all.

        Raises:
            ConfigError: a key is missing or unknown, or of another shape or format.
            FarsideError: the job can't go on.
        """
        if self._state == "pushed":
            raise ConfigError("push twice without a pull between", hint="push once in each iteration, then pull")
        ours = checked(parts, self._keys)
        comp_s = time.monotonic() - self._computes_from_s
        self._turns.ask(INIT_PUSH if self._state == "new" else self._position("PUSH"))
        began_s = time.monotonic()
        self._send(ours, failed=False)
        net_s = self._net_s + time.monotonic() - began_s
        self._turns.done()
        self._report.over(time.monotonic())
        self._spills.pushed(self.model, comp_s=comp_s, net_s=net_s)

    # --- what goes along

    def _send(self, parts: Arrays, *, failed: bool) -> None:
        compares = self.workers > 1 and self.iteration >= 0 and self.iteration % COMPARE_EVERY == 0
        word = Word(
            stops=self._wants_stop,
            keeps=self.rank == 0 and time.monotonic() - self._kept_s >= self._checkpoint_s,
            failed=failed,
            run=self._run if self.rank == 0 else 0,
            resumed=self._resumed,
            model=_check_sum(self.model) if compares and not failed else None,
        )
        numbers = np.array(numbers_of(word, self.rank, self.workers), np.int64)
        self._opened.push({**parts, _AGREEMENT: numbers}, _nothing if failed else self._turns.give_way)
        self._state = "pushed"

    def _check(self, said: Agreed) -> None:
        if said.failed:
            ranks = ", ".join(map(str, said.failed))
            raise WorkerFailed(f"rank {ranks} failed in iteration {max(self.iteration - 1, 0)}; its own line says why")
        if len(set(said.resumed)) > 1:
            ways = ", ".join("none" if one is None else f"i-{one}" for one in said.resumed)
            raise ConfigError(f"workers go on from different checkpoints: {ways}", hint="give all the same folder")
        models = {one for one in said.models if one is not None}
        if len(models) > 1:
            raise WorkerFailed(
                f"workers' models differ in iteration {self.iteration}",
                hint="their processors or libraries compute differently; use nodes that are alike",
            )

    def _say_failed(self) -> None:
        """Tells the others that this worker's program has failed, where it has yet to push."""
        if self._sums is not None and self._state != "pushed" and self.workers > 1:
            self._tell_failed()

    def _leave_early(self) -> None:
        """The loop was left before its end: fine where all workers do so, and the others would wait otherwise.

        Raises:
            WorkerFailed: others go on.
        """
        if self.workers > 1:
            failed = self._tell_failed()
            if len(failed) < self.workers:
                raise WorkerFailed(
                    f"rank {self.rank} left the loop in iteration {max(self.iteration, 0)}, before its end",
                    hint="end with `finish`, at all workers in the same iteration",
                )
        self._close_checkpoint()

    def _tell_failed(self) -> Sequence[int]:
        """Says to the others that this worker has failed; all that have, none where the others did not answer."""
        deadline_s = time.monotonic() + FAIL_LIMIT_S

        def give_up() -> None:
            if time.monotonic() > deadline_s:
                raise PeerError("they did not push in time")

        try:
            if self._state == "pushed":
                self._opened.pull(give_up)
            self._send({key.name: np.zeros(key.shape, key.dtype) for key in self._keys}, failed=True)
            # What a member has pushed goes with it, as long as it is in no sum.
            found = self._opened.pull(give_up)
        except FarsideError as error:
            _log.warning("the other workers were not told", reason=error)
            return ()
        return agreed(found[_AGREEMENT].tolist(), self.workers).failed

    def _position(self, phase: Literal["PULL", "COMP", "PUSH"]) -> int:
        return position_of(self.iteration - self._began, phase)

    # --- checkpoints and ends

    @property
    def _opened(self) -> PushPull:
        assert self._sums is not None, "a job is used within its `with`"
        return self._sums

    @property
    def _is_over(self) -> bool:
        return self.iteration >= self._iterations

    def _check_sums(self, restored: Restored) -> None:
        ours = {key.name: (key.shape, key.dtype) for key in self._keys}
        theirs = {name: (array.shape, array.dtype) for name, array in restored.sums.items()}
        if ours != theirs:
            raise ConfigError(
                f"checkpoint i-{restored.iteration} has the keys {_in_words(theirs)}; this job has {_in_words(ours)}",
                hint="name another checkpoint folder, or remove this one",
            )

    def _check_iterations(self, restored: Restored) -> None:
        if restored.iteration > self._iterations:
            raise ConfigError(
                f"iterations: is {self._iterations}, and checkpoint i-{restored.iteration} has {restored.iteration}",
                hint=f"ask for {restored.iteration} or more, or name another checkpoint folder",
            )

    def _take(self, restored: Restored) -> None:
        self._resumed = self._began = restored.iteration
        if restored.finished is not None:
            self._finished = restored.finished
            self._iterations = min(self._asked, restored.finished)
        self.model.update(restored.model)
        for number, state in restored.states.items():
            self._own.state_of(number).update(state)
        self.iteration = restored.iteration - 1
        _log.info("the job goes on from a checkpoint", iteration=restored.iteration, rank=self.rank)

    def _keep(self, checkpoints: Checkpoints, sums: Arrays) -> None:
        self._kept_s = time.monotonic()
        try:
            checkpoints.write(self.iteration, self._run, self._own.states(), self.model, sums, finished=self._finished)
        except OSError as error:
            _log.error("a checkpoint can't be written; the one before stays", rank=self.rank, reason=error)

    def _close_checkpoint(self) -> None:
        if self._checkpoints is None or self.rank:
            return
        deadline_s = time.monotonic() + COMPLETE_LIMIT_S
        while not self._checkpoints.complete():
            if time.monotonic() > deadline_s:
                _log.error("the last checkpoint lacks parts of other ranks; the one before stays")
                return
            time.sleep(0.01)

    def _pause(self) -> None:
        self._close_checkpoint()
        if self._checkpoints is None:
            raise Paused(f"stopped in iteration {self.iteration} without a checkpoint", hint="name a checkpoint folder")
        raise Paused(f"paused in iteration {self.iteration}", hint="start it again to go on")

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._wants_stop = True


def _program() -> str:
    """Names the file that this process runs, with a check sum of it; empty: there is none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return f"{Path(path).name} {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}" if path else ""
    except OSError:
        return ""


def _in_words(keys: Mapping[str, tuple[tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in sorted(keys.items()))


def _nothing() -> None:
    """Nobody waits for the network."""


def _check_sum(model: Arrays) -> int:
    check = 0
    for name in sorted(model):
        check = zlib.crc32(np.ascontiguousarray(model[name]).tobytes(), check)
    return check


def checked_seconds(given: float, where: str) -> float:
    """Seconds from one checkpoint to the next.

    Raises:
        ConfigError: They are nan; ``where`` names who gave them.
    """
    if math.isnan(given):
        raise ConfigError(f"{where}: is nan; a number of seconds is needed")
    return given


def _seconds(given: float | None) -> float:
    if given is not None:
        return checked_seconds(given, "checkpoint_s")
    text = os.environ.get(CHECKPOINT_S) or str(CHECKPOINT_DEFAULT_S)
    try:
        return checked_seconds(float(text), CHECKPOINT_S)
    except ValueError as error:
        raise ConfigError(f"{CHECKPOINT_S} is '{text}', which is not a number of seconds") from error


def _source() -> PlanSource | None:
    """The job's plan of Aggregators; None: this process is its only worker."""
    if os.environ.get(SERVICE):
        return static_plan_from()
    if os.environ.get(RELAY_SOCKET):
        raise ConfigError(
            "the manager's jobs do not train this way",
            hint="leave out aggregation, or name Aggregators in FARSIDE_AGGREGATION_SERVICE",
        )
    members = os.environ.get("WORLD_SIZE") or "1"
    if members != "1":
        raise ConfigError(
            f"WORLD_SIZE is {members}, and no Aggregator is named",
            hint="name them in FARSIDE_AGGREGATION_SERVICE, or use `farside train --workers`",
        )
    return None
