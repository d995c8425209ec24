"""docs/slurm.md says of Farside beside Slurm what the last run wrote down, and nothing else."""

import json

import pytest

from benchmarks.beside_render import HEAD, section
from benchmarks.beside_slurm import DOCUMENT, RESULTS
from benchmarks.section import with_section

FIGURE = {
    "jobs": 1000, "submit_s": 0.2, "array_s": 20.0, "singles": 100, "call_s": 0.15, "cpu_s": 0.12, "start_s": 0.3,
    "singly_s": 25.0,
}  # fmt: skip
TOLD = {
    "commit": "abc",
    "machine": {"cpu": "a CPU", "cores": 2, "load_before": 0.5},
    "figures": [{**FIGURE, "name": "farside", "array_s": array_s} for array_s in (20.0, 10.0, 40.0)]
    + [{**FIGURE, "name": "slurm"}],
}


def test_the_document_has_the_figures_of_the_last_run() -> None:
    document = DOCUMENT.read_text()

    assert with_section(document, HEAD, section(json.loads(RESULTS.read_text()))) == document


def test_a_row_has_the_medians_of_the_repetitions() -> None:
    lines = section(TOLD).splitlines()

    assert "| `farside submit` | 50.0 | 200 ms | 4.0 | 150 ms | 120 ms | 300 ms |" in lines
    assert "| `sbatch` | 50.0 | 200 ms | 4.0 | 150 ms | 120 ms | 300 ms |" in lines


@pytest.mark.parametrize(("load", "is_warned"), [(0.5, False), (2.0, False), (2.01, True)])
def test_figures_of_a_busy_machine_are_told_to_be_so(load: float, is_warned: bool) -> None:
    told = {**TOLD, "machine": {"cpu": "a CPU", "cores": 2, "load_before": load}}

    assert ("**The machine was busy" in section(told)) is is_warned


def test_what_stands_before_the_section_stays_as_it_is() -> None:
    made = with_section(f"# Title\n\ntext\n\n{HEAD}\nold figures\n", HEAD, section(TOLD))

    assert made.startswith(f"# Title\n\ntext\n\n{HEAD}\nWritten by")
    assert "old figures" not in made


def test_a_document_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no '## Farside's own manager"):
        with_section("# Title\n", HEAD, section(TOLD))
