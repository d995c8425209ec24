"""Input larger than jobs' memory, by the memory controller of cgroup v2, and in the memory of donors that die."""

from pathlib import Path

from tests.support.kernel_limit import MemoryLimit
from tests.train.test_memory_limit import check_that_two_jobs_end_spilled_and_are_killed_otherwise
from tests.train.test_memory_limit import limits as limits
from tests.train.test_peer_device import check_that_it_goes_on_by_the_disk
from tests.train.test_peer_device import peer_settings as peer_settings


def test_jobs_with_memory_for_half_of_their_input_end_with_the_same_bits_and_are_killed_without_spilling(
    tmp_path: Path, limits: dict[str, MemoryLimit]
) -> None:
    check_that_two_jobs_end_spilled_and_are_killed_otherwise(tmp_path, limits)


def test_a_job_whose_donors_die_goes_on_by_the_disk_and_loses_no_iteration(peer_settings: Path) -> None:
    check_that_it_goes_on_by_the_disk(peer_settings)
