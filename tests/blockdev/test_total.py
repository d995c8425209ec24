"""Counters over several processes."""

from farside.blockdev.total import LONGEST, add_stats, latency_buckets
from tests.blockdev.test_metrics import stats


def test_counters_of_all_processes_are_summed() -> None:
    first = add_stats({}, stats(pages_in_disk=3, requests_read=2))

    assert add_stats(first, stats(pages_in_disk=4))["pages_in_disk"] == 7
    assert add_stats(first, stats())["requests_read"] == 2


def test_latencies_of_all_processes_are_summed_by_bucket() -> None:
    first = add_stats({}, stats(latency_read=(0, 3, *[0] * 30)))

    both = add_stats(first, stats(latency_read=(1, 4, *[0] * 30)))

    assert latency_buckets(both, "read") == (1, 7, *[0] * 30)


def test_the_longest_request_is_the_longest_of_any_process() -> None:
    first = add_stats({}, stats(longest_request_ns=9))

    assert add_stats(first, stats(longest_request_ns=5))[LONGEST] == 9
    assert add_stats(first, stats(longest_request_ns=12))[LONGEST] == 12
