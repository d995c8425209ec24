"""Input larger than a job's memory, by the memory controller of cgroup v2."""

from pathlib import Path

from tests.train.test_memory_limit import Limited, check_that_it_ends_spilled_and_is_killed_otherwise
from tests.train.test_memory_limit import limited as limited


def test_a_job_with_memory_for_half_of_its_input_ends_with_the_same_bits_and_is_killed_without_spilling(
    tmp_path: Path, limited: Limited
) -> None:
    check_that_it_ends_spilled_and_is_killed_otherwise(tmp_path, limited)
