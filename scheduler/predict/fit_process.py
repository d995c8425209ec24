"""A fit in a process of its own, so that no decision waits for it; it computes while nobody else wants to.

The owner writes a `Lesson` to the child's standard input, and reads `Fitted` from its standard output, both as msgpack:
two processes of one version, so there is no format to keep. What is wrong is the last line of its standard error. The
child ends with its owner, whichever way that ends.
"""

import asyncio
import os
import signal
import sys
from types import TracebackType

import msgspec
import numpy as np

from farside.ending import die_with
from farside.errors import PeerError
from farside.kmod_shim.time_slice import take_idle_time
from farside.log import get_log
from farside.scheduler.predict.choose_estimator import Judged
from farside.scheduler.predict.estimate_quality import Quality
from farside.scheduler.predict.gbdt import gbdt_from_text
from farside.scheduler.predict.gpu_time_fit import Fitted, Lesson, learned_from
from farside.scheduler.predict.job_features import FEATURES
from farside.scheduler.predict.mean_correction import Spread
from farside.scheduler.table import Floats

_COLUMNS = ("ran_s", "gpus", "kinds", "rolling_median_s", "rolling_s")

_log = get_log("predict")


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    rows: bytes
    columns: dict[str, bytes]
    from_s: float
    rolling_weight: float
    is_first: bool


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    tables: dict[str, dict[int, int]]
    weight: float
    found: Quality
    judged: list[tuple[float, float, float, float, float]]
    spread: list[object] | None
    trained_on: int
    from_s: float


class Fitter:
    """Has one model fitted at a time. A context: at its end a fit that goes on is given up."""

    def __init__(self) -> None:
        self._fit: asyncio.Task[Fitted | None] | None = None

    async def __aenter__(self) -> "Fitter":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._fit is not None:
            self._fit.cancel()
            await asyncio.gather(self._fit, return_exceptions=True)

    @property
    def is_fitting(self) -> bool:
        """Whether a fit has begun and was not taken yet."""
        return self._fit is not None

    def begin(self, lesson: Lesson) -> None:
        """Begin a fit; there must be none."""
        assert self._fit is None, "one at a time"
        self._fit = asyncio.create_task(_tried(lesson))

    def take(self) -> Fitted | None:
        """What a fit found that has ended since; None: none has, or it failed, which was logged."""
        if self._fit is None or not self._fit.done():
            return None
        fitted, self._fit = self._fit.result(), None
        return fitted


async def _tried(lesson: Lesson) -> Fitted | None:
    try:
        return await fitted_apart(lesson)
    except Exception as error:  # whatever it met: its owner takes its result, and goes on deciding
        _log.error("the model of run times was not fitted; jobs are expected by what is known", reason=error)
        return None


async def fitted_apart(lesson: Lesson) -> Fitted:
    """Fit in a process of its own.

    Raises:
        PeerError: It could not, with its last line.
        ConfigError: What it found is no model.
    """
    question = await asyncio.to_thread(_asked, lesson)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(os.getpid()),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        answer, said = await process.communicate(question)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        raise PeerError(lines[-1] if lines else f"the fitting process ended by {process.returncode}")
    return await asyncio.to_thread(_answered, answer)


def _asked(lesson: Lesson) -> bytes:
    columns = {name: np.ascontiguousarray(getattr(lesson, name)).tobytes() for name in _COLUMNS}
    return msgspec.msgpack.encode(
        _Question(
            rows=np.ascontiguousarray(lesson.rows).tobytes(), columns=columns, from_s=lesson.from_s,
            rolling_weight=lesson.rolling_weight, is_first=lesson.is_first,
        )
    )  # fmt: skip


def _lesson(raw: bytes) -> Lesson:
    asked = msgspec.msgpack.decode(raw, type=_Question)
    columns: dict[str, Floats] = {name: np.frombuffer(asked.columns[name]) for name in _COLUMNS}
    return Lesson(
        rows=np.frombuffer(asked.rows).reshape(-1, len(FEATURES)), from_s=asked.from_s,
        rolling_weight=asked.rolling_weight, is_first=asked.is_first, **columns,
    )  # fmt: skip


def _answer(fitted: Fitted) -> bytes:
    return msgspec.msgpack.encode(
        _Answer(
            text=fitted.trees.text, tables={name: dict(table) for name, table in fitted.trees.tables.items()},
            weight=fitted.weight, found=fitted.found,
            judged=[(one.model, one.rolling, one.gpus, one.true, one.user) for one in fitted.judged],
            spread=None if fitted.spread is None else fitted.spread.state(),
            trained_on=fitted.trained_on, from_s=fitted.from_s,
        )
    )  # fmt: skip


def _answered(raw: bytes) -> Fitted:
    told = msgspec.msgpack.decode(raw, type=_Answer)
    spread = None
    if told.spread is not None:
        spread = Spread()
        kinds, every = told.spread
        assert isinstance(kinds, list)
        assert isinstance(every, list)
        spread.restore(kinds, every)
    return Fitted(
        trees=gbdt_from_text(told.text, told.tables, FEATURES), weight=told.weight, found=told.found,
        judged=tuple(Judged(*one) for one in told.judged), spread=spread, trained_on=told.trained_on,
        from_s=told.from_s,
    )  # fmt: skip


def main() -> None:
    """The child: one lesson, one answer."""
    die_with(int(sys.argv[1]), signal.SIGKILL)
    take_idle_time()
    raw = sys.stdin.buffer.read()
    sys.stdout.buffer.write(_answer(learned_from(_lesson(raw))))


if __name__ == "__main__":
    main()
