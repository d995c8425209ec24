"""The command `farside train`: four training programs, and users' own, on any number of workers of this machine."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from farside.cli import options
from farside.errors import ConfigError


class _Programs(TyperGroup):
    """A command group that takes the name of a Python file for the command `file`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0].endswith(".py"):
            args = ["file", *args]
        return super().resolve_command(ctx, args)


train_app = typer.Typer(
    cls=_Programs,
    help="Train a model on NumPy: `farside train nmf`, lda, mlr, lasso, or a Python file of your own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=64,
        show_default="1; 0 where a manager has put a worker on each of several nodes",
        help="Worker processes on this machine; 0: one, as RANK says.",
    ),
]
_Threads = Annotated[
    int,
    # By which a manager tells a co-located job how many it asked for (`JobSpec.threads`).
    typer.Option(min=1, envvar="FARSIDE_THREADS", help="Threads of NumPy's libraries in each worker."),
]
_Folder = Annotated[
    Path | None, typer.Option(help="Folder for checkpoints; a job that finds one there goes on from it.")
]
_Every = Annotated[float | None, typer.Option(min=0, help="Seconds between checkpoints; default 30.")]
_Retries = Annotated[
    int, typer.Option(min=0, help="Restarts of all workers after one was killed; needs a checkpoint folder.")
]
_Service = Annotated[
    list[str] | None, typer.Option(metavar="ENDPOINT", help="Aggregator: unix:PATH or tcp:HOST:PORT (repeatable).")
]
_KeyFile = Annotated[Path | None, typer.Option(help="Key file of the Aggregators.")]
_Executor = Annotated[
    Path | None, typer.Option(help="Take turns with other jobs of this node: the socket of its `farside executor`.")
]
_SpillDir = Annotated[
    Path | None,
    typer.Option(help="Keep input that does not fit in memory in a file here, on a disk of this machine."),
]
_SpillPeer = Annotated[
    Path | None,
    typer.Option(
        help="With --spill-dir: a block device in a peer's memory, for this worker alone, or a borrower's settings."
    ),
]
_SpillMemory = Annotated[
    int | None,
    typer.Option(
        parser=options.byte_count, metavar="BYTES",
        help="Memory of each worker, with --spill-dir; default: its cgroup's limit.",
    ),
]  # fmt: skip
_Iterations = Annotated[int, typer.Option(min=1, help="Maximum number of iterations.")]
_Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]
_Blocks = Annotated[
    int,
    typer.Option(min=0, help="Number of input blocks, 100000 at most; 0: 32, or the number of rows if that is less."),
]
_Rows = Annotated[int | None, typer.Option(show_default="2000", help="Rows of synthetic data.")]
_Columns = Annotated[
    int | None,
    typer.Option(show_default="200", help="Columns of synthetic data; for lda its number of different words."),
]
_Tolerance = Annotated[
    float, typer.Option(min=0, help="End when the objective's relative change over 5 iterations is less; 0: never.")
]
_Out = Annotated[Path | None, typer.Option(help="File for the model, .npz.")]
_Data = Annotated[str, typer.Option(help="Data set (docs/training.md), synthetic, or a file: .csv, .npy, .npz, .ldac.")]


def _how(
    workers: _Workers = None,
    threads: _Threads = 1,
    checkpoint_dir: _Folder = None,
    checkpoint_s: _Every = None,
    retries: _Retries = 0,
    service: _Service = None,
    key_file: _KeyFile = None,
    executor: _Executor = None,
    spill_dir: _SpillDir = None,
    spill_peer: _SpillPeer = None,
    spill_memory: _SpillMemory = None,
) -> dict[str, Any]:
    """How a program runs."""
    return {
        "workers": workers, "threads": threads, "checkpoint_dir": checkpoint_dir, "checkpoint_s": checkpoint_s,
        "retries": retries, "service": tuple(service or ()), "key_file": key_file, "executor": executor,
        "spill_dir": spill_dir, "spill_peer": spill_peer, "spill_memory": spill_memory,
    }  # fmt: skip


def _what(
    iterations: _Iterations = 100,
    seed: _Seed = 0,
    blocks: _Blocks = 0,
    rows: _Rows = None,
    columns: _Columns = None,
    tolerance: _Tolerance = 0.0,
    out: _Out = None,
) -> dict[str, Any]:
    """What all four programs have."""
    if out and not os.access(out.resolve().parent, os.W_OK):
        raise ConfigError(f"--out: no file can be made in '{out.resolve().parent}'", hint="make that folder first")
    if out and out.is_dir():
        raise ConfigError(f"--out: '{out}' is a folder; it takes a file's name")
    return {
        "iterations": iterations, "seed": seed, "blocks": blocks, "rows": rows, "columns": columns,
        "tolerance": tolerance, "out": str(out.resolve()) if out else "",
    }  # fmt: skip


@train_app.command()
@options.made(is_last=True, what=_what, how=_how)
def nmf(
    what: dict[str, Any],
    how: dict[str, Any],
    data: _Data = "digits",
    rank: Annotated[int, typer.Option(min=1, help="Number of components.")] = 16,
) -> None:
    """Factorise a matrix without negative numbers, by HALS."""
    _train({"app": "nmf", "data": data, "components": rank, **what}, how)


@train_app.command()
@options.made(is_last=True, what=_what, how=_how)
def lda(
    what: dict[str, Any],
    how: dict[str, Any],
    data: _Data = "reuters",
    topics: Annotated[int, typer.Option(min=1, help="Number of topics.")] = 20,
    alpha: Annotated[float, typer.Option(help="Prior of a topic in a document.")] = 0.1,
    eta: Annotated[float, typer.Option(help="Prior of a word in a topic.")] = 0.01,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Sample so that the result does not depend on the number of workers.")
    ] = False,
) -> None:
    """Find topics of documents, by collapsed Gibbs sampling; needs numba."""
    if alpha <= 0 or eta <= 0:
        raise ConfigError("alpha and eta must be more than 0")
    found = {"app": "lda", "data": data, "components": topics, "alpha": alpha, "eta": eta, "frozen": frozen}
    _train(found | what, how)


@train_app.command()
@options.made(is_last=True, what=_what, how=_how)
def mlr(
    what: dict[str, Any],
    how: dict[str, Any],
    data: _Data = "digits",
    penalty: Annotated[float, typer.Option(min=0, help="Weight of the squared weights.")] = 0.001,
    classes: Annotated[int | None, typer.Option(min=2, show_default="10", help="Classes of synthetic data.")] = None,
) -> None:
    """Classify rows, by multinomial logistic regression."""
    _train({"app": "mlr", "data": data, "penalty": penalty, "classes": classes, **what}, how)


@train_app.command()
@options.made(is_last=True, what=_what, how=_how)
def lasso(
    what: dict[str, Any],
    how: dict[str, Any],
    data: _Data = "diabetes",
    penalty: Annotated[float, typer.Option(min=0, help="Weight of the absolute weights.")] = 0.1,
) -> None:
    """Fit a linear model of which many weights are zero."""
    _train({"app": "lasso", "data": data, "penalty": penalty, **what}, how)


@train_app.command("file", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@options.made(is_last=True, how=_how)
def file(
    how: dict[str, Any],
    program: Annotated[Path, typer.Argument(metavar="FILE.py", help="Python file that uses farside.training.begin.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="The file's arguments.")
    ] = None,
) -> None:
    """Run a training program of your own; options of `farside train` go before FILE.py.

    `farside train FILE.py` is short for `farside train file FILE.py`.
    """
    if not program.is_file():
        raise ConfigError(f"there is no file '{program}'")
    _start([str(program), *(arguments or ())], how)


def _train(what: dict[str, Any], how: dict[str, Any]) -> None:
    from farside.training.app.dataset import SYNTHETIC

    what = {name: value for name, value in what.items() if value is not None}
    for name in ("rows", "columns", "classes"):
        if name in what and what["data"] != SYNTHETIC:
            raise ConfigError(
                f"--{name}: is for --data {SYNTHETIC}, and this job has {what['data']}",
                hint=f"leave it out, or add --data {SYNTHETIC}",
            )
    for name, value in what.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"--{name}: is {value}; a number is needed")
    _check_blocks(what, how["workers"] or 1)
    _start([json.dumps(what)], how)


def _check_blocks(what: dict[str, Any], workers: int) -> None:
    """Raises ConfigError where some workers would have no input block."""
    if workers == 1:
        return
    from farside.training.app.dataset import BLOCKS, SYNTHETIC

    most = min(BLOCKS, what.get("rows", BLOCKS)) if what["data"] == SYNTHETIC else BLOCKS
    blocks = what["blocks"] or most
    if workers > blocks > 0:
        raise ConfigError(
            f"--workers: {workers} for {blocks} input blocks, and each needs one",
            hint=f"add --blocks {workers} or more, or give at most {blocks} workers",
        )


def _spilling(how: dict[str, Any]) -> dict[str, str]:
    """The variables by which workers know where input goes that does not fit."""
    from farside.training.loop.spilling import SPILL_DIR, SPILL_MEMORY, SPILL_OFFER, SPILL_PEER

    peer, memory_bytes = how["spill_peer"], how["spill_memory"]
    is_spilling = how["spill_dir"] is not None or os.environ.get(SPILL_DIR)
    if is_spilling and (how["workers"] or 1) > 1 and memory_bytes is None and not os.environ.get(SPILL_MEMORY):
        raise ConfigError(
            f"--spill-dir with {how['workers']} workers, whose cgroup has one limit for all of them",
            hint="say by --spill-memory what each may have",
        )
    if how["spill_dir"] is None and (peer is not None or memory_bytes is not None):
        name = "--spill-peer" if peer is not None else "--spill-memory"
        raise ConfigError(f"{name} without --spill-dir", hint="name a folder on a disk of this machine")
    if peer is not None and (how["workers"] or 1) > 1:
        raise ConfigError(
            f"--spill-peer with {how['workers']} workers on this machine; it is for one",
            hint="start a worker with each device, with --workers 0",
        )
    given = {SPILL_DIR: how["spill_dir"], SPILL_PEER: peer}
    # What a node offers is for one worker of a job: several would each take all of its memory for their own.
    declined = {SPILL_OFFER: ""} if (how["workers"] or 1) > 1 else {}
    told = {name: str(path.resolve()) for name, path in given.items() if path is not None}
    return declined | told | ({SPILL_MEMORY: str(memory_bytes)} if memory_bytes is not None else {})


def _start(words: list[str], how: dict[str, Any]) -> None:
    from farside.cli.train_worker import PARENT
    from farside.training.launch import Launch, launch
    from farside.training.loop.job import CHECKPOINT_DIR, CHECKPOINT_S, checked_seconds
    from farside.training.static_plan import START

    told = {PARENT: str(os.getpid())}
    if how["checkpoint_dir"] is not None:
        told[CHECKPOINT_DIR] = str(how["checkpoint_dir"].resolve())
    if how["checkpoint_s"] is not None:
        told[CHECKPOINT_S] = str(checked_seconds(how["checkpoint_s"], "--checkpoint-s"))
    told |= _spilling(how)
    if how["retries"] and not (told.get(CHECKPOINT_DIR) or os.environ.get(CHECKPOINT_DIR)):
        raise ConfigError("--retries without a checkpoint folder", hint="add --checkpoint-dir")
    workers = how["workers"] if how["workers"] is not None else int(not os.environ.get(START))
    wanted = Launch(
        argv=[sys.executable, "-m", "farside.cli.train_worker", *words],
        workers=workers,
        threads=how["threads"],
        retries=how["retries"],
        service=how["service"],
        key_file=str(how["key_file"].resolve()) if how["key_file"] else "",
        executor=str(how["executor"].resolve()) if how["executor"] else "",
        environment=told,
    )
    raise typer.Exit(launch(wanted))
