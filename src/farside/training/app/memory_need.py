"""The memory that a program needs at least: what no machine of this size can hold is refused before it is tried."""

import os
import re
from pathlib import Path

from farside.errors import ConfigError
from farside.kernel_file import kernel_text
from farside.training.app.program import Options
from farside.training.loop.memory_meter import MemoryMeter
from farside.units import format_bytes

_NUMBER_BYTES = 8


def least_bytes(options: Options, *, rows: int, columns: int, classes: int = 0) -> int:
    """What one worker has at once of the model and its sums, and of the input ``rows`` that it keeps in memory."""
    components = options.components
    model, own = {
        # The right factor and what is pushed of it; the products of both factors; the left factor.
        "nmf": (2 * components * (columns + components), rows * components),
        # Counts of words in topics, three times; counts of topics in documents.
        "lda": (3 * components * columns, rows * components),
        # Two points, a gradient, and its sum.
        "mlr": (4 * classes * columns, 0),
        "lasso": (4 * columns, 0),
    }[options.app]
    # A document has a number for each word that is in it, not for each that there is.
    table = 0 if options.app == "lda" else rows * columns
    return _NUMBER_BYTES * (model + own + table)


def check_memory(
    options: Options,
    *,
    rows: int,
    columns: int,
    classes: int = 0,
    here: int = 1,
    has_bytes: int | None = None,
) -> None:
    """Raises ConfigError where workers need more than there is: memory and swap, or their cgroup's limit and swap.

    Args:
        options: The program.
        rows: Of the input that a worker keeps in memory; 0: it is there already.
        columns: Of the input.
        classes: Of the input.
        here: How many workers share this machine's memory.
        has_bytes: What there is; None: as the kernel says.
    """
    needed_bytes = here * least_bytes(options, rows=rows, columns=columns, classes=classes)
    has_bytes = _has_bytes() if has_bytes is None else has_bytes
    if needed_bytes > has_bytes:
        names = {"nmf": "components (--rank)", "lda": "topics", "mlr": "classes", "lasso": ""}[options.app]
        count = classes if options.app == "mlr" else options.components
        sizes = [f"{rows:,} rows{' a worker' if here > 1 else ''}"] if rows else []
        sizes += [f"{columns:,} columns", *([f"{count:,} {names}"] if names else [])]
        shared = f" with {here} workers on this machine" if here > 1 else ""
        raise ConfigError(
            f"{options.app}: {', '.join(sizes)} take {format_bytes(needed_bytes)} of memory at least{shared}, and "
            f"{format_bytes(has_bytes)} is there",
            hint="choose fewer",
        )


def _has_bytes(proc: Path = Path("/proc")) -> int:
    swap = re.search(r"^SwapTotal:\s+(\d+) kB$", kernel_text(proc / "meminfo"), re.MULTILINE)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (MemoryMeter().read().limit_bytes or whole) + (1024 * int(swap[1]) if swap else 0)
