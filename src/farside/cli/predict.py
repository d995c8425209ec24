"""The command `farside predict`: models trained on a job log, and their accuracy."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from farside.cli.terminal import note

predict_app = typer.Typer(
    help="Fit models to a job log, and measure their benefit.", no_args_is_help=True, rich_markup_mode=None
)

_Log = Annotated[Path, typer.Argument(metavar="LOG", help="Past jobs: a trace in any format.")]
_Format = Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the log; auto: detect it.")]
_Bad = Annotated[Literal["refuse", "skip"], typer.Option("--on-bad", help="What to do with unusable rows.")]
_BadOnce = Annotated[Literal["refuse", "skip"] | None, typer.Option("--bad", hidden=True)]  # what --on-bad was called


@predict_app.command()
def fit(
    log: _Log,
    models: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for models.")],
    fmt: _Format = "auto",
    bad: _Bad = "refuse",
    bad_once: _BadOnce = None,
) -> None:
    """Fit the model of GPU times to a log, and save it.

    Shows its accuracy on jobs that it was not trained on, beside the rolling estimate and the number of GPUs.
    """
    from farside.cli.figure_table import print_plain
    from farside.cli.predict_fit import fit_gpu_time, quality_table
    from farside.errors import ConfigError
    from farside.scheduler.predict.model_files import ModelStore
    from farside.scheduler.sim.output_files import check_apart

    store = ModelStore(models)
    kept = (models / "qssf.json", *models.glob("qssf-*.txt"))  # the one is replaced, and old ones of the others go
    check_apart({f"--models, in its {path.name}": path for path in kept}, {"the log": log})
    store.check()
    learner, record = fit_gpu_time(log, fmt, bad_once or bad)
    print_plain(quality_table(learner))
    if record is None:
        raise ConfigError(f"{log}: too few jobs for a model", hint="qssf uses the rolling estimate, or GPUs, meanwhile")
    manifest = store.save(record)
    note(f"{models / manifest.text_file}: version {manifest.version}, {record.trained_on} jobs")


@predict_app.command()
def rebalance(
    log: _Log,
    vc_nodes: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV with the number of nodes of each virtual cluster.")
    ],
    gpus_per_node: Annotated[int, typer.Option(metavar="G", min=1, help="GPUs of each node.")],
    policy: Annotated[str, typer.Option(metavar="NAME", help="Policy that orders jobs.")] = "fifo",
    fmt: _Format = "auto",
    bad: _Bad = "refuse",
    bad_once: _BadOnce = None,
) -> None:
    """Show which virtual clusters could have lent nodes to others, and the queueing time saved."""
    from farside.cli.figure_table import print_plain
    from farside.cli.predict_rebalance import rebalance_tables

    print_plain(*rebalance_tables(log, vc_nodes, gpus_per_node, policy, fmt, bad_once or bad))
