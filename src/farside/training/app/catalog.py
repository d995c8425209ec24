"""The programs by name."""

from collections.abc import Callable, Mapping

from farside.training.app.dataset import Input
from farside.training.app.lasso import train_lasso
from farside.training.app.lda import train_lda
from farside.training.app.mlr import train_mlr
from farside.training.app.nmf import train_nmf
from farside.training.app.program import AppName, Options, Outcome, Watch

PROGRAMS: Mapping[AppName, Callable[[Input, Options, Watch], Outcome]] = {
    "nmf": train_nmf,
    "lda": train_lda,
    "mlr": train_mlr,
    "lasso": train_lasso,
}
