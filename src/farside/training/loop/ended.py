"""Why a training program ends before its work is done: in one line, and with an exit code that says which."""

from farside.errors import FarsideError


class Paused(FarsideError):
    """All workers have stopped at the same iteration because one of them was asked to; start again to go on."""

    exit_code = 75


class WorkerFailed(FarsideError):
    """A worker failed, so all of them stop at the same iteration."""


class Diverged(FarsideError):
    """The objective is not finite; all workers see that at the same iteration."""
