"""What `farside sim replay` says of its own prediction."""

import pytest

from farside.cli.simulate.replay import doubt_of


@pytest.mark.parametrize("policy", ["sjf", "srtf", "srsf"])
def test_a_replay_by_true_run_times_says_that_the_manager_did_not_have_them(policy: str) -> None:
    """It ordered jobs by what nobody had known, and called that a prediction."""
    assert f"{policy} orders here by the run times that jobs turned out to have" in doubt_of(policy)


@pytest.mark.parametrize("policy", ["las", "fifo", "gittins", "qssf"])
def test_a_replay_under_the_same_knowledge_has_no_doubt(policy: str) -> None:
    assert not doubt_of(policy)
