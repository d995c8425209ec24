"""What the benchmark of the hardened build makes of its samples, and that it knows one build from the other."""

from pathlib import Path

import pytest

from benchmarks.hardening_cost import HARDENED, PLAIN, POINTS, is_bound_now, ratio_of
from benchmarks.load import BenchmarkError
from benchmarks.result import Point, Rw, Sample
from benchmarks.summary import summarise

ROOT = Path(__file__).parents[2]


def sample(build: str, point: Point, cpu_us: float, p50_us: float) -> Sample:
    return Sample(
        server=f"{build}-tcp", point=point, repetition=0, iops=1.0, bytes_per_s=1.0, mean_us=1.0, p50_us=p50_us,
        p99_us=1.0, p999_us=1.0, max_us=1.0, failed=0, misread=0,
        cpu_us_per_request={"client": 1000.0, "server": cpu_us / 2, "donor": cpu_us / 2},
    )  # fmt: skip


def test_the_cost_is_that_of_borrower_and_donor_over_all_loads_and_the_client_does_not_count() -> None:
    samples = [
        sample(build, point, cpu_us * (1 + (point.rw is Rw.WRITE and build == HARDENED)), cpu_us)
        for build, cpu_us in ((HARDENED, 10.2), (PLAIN, 10.0))
        for point in POINTS
    ]

    found = ratio_of(summarise(samples), "tcp")

    assert found.cpu_least == pytest.approx(1.02)
    assert found.cpu_most == pytest.approx(2.04)
    assert found.cpu == pytest.approx(1.02 * 2**0.5)
    assert found.read_p50 == pytest.approx(1.02)


def test_the_module_that_is_built_by_default_is_the_hardened_one() -> None:
    assert is_bound_now(ROOT / "kmod_shim/engine/_ffi.abi3.so")


def test_a_module_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="readelf"):
        is_bound_now(tmp_path / "none.so")
