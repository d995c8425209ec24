"""A plan without a manager, from what a user or the environment says."""

from pathlib import Path

import pytest

from farside.agent.aggregator.layout import Tensor, make_layout
from farside.agent.aggregator.plan import job_key
from farside.errors import ConfigError, Unavailable
from farside.training.member import MemberSession, source_from_environment
from farside.training.static_plan import StaticPlan, launched_as, static_plan_from

LAYOUT = make_layout([Tensor("a", 300_000, "f32"), Tensor("b", 10, "f32")])


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("01" * 32)
    path.chmod(0o600)
    return path


def make_plan(key_file: Path, *service: str, **changes: object) -> StaticPlan:
    given: dict[str, object] = {"job": "j", "rank": 0, "members": 2, **changes}
    return StaticPlan(service or ("unix:/run/a", "tcp:host:7683"), key_file, **given)  # type: ignore[arg-type]


def test_all_ranks_have_the_same_plan(key_file: Path) -> None:
    plans = [make_plan(key_file, rank=rank).plan(LAYOUT, rule="sum", after_epoch=0) for rank in (0, 1)]

    assert plans[0] == plans[1]
    assert [(one.unix, one.tcp) for one in plans[0].aggregators] == [("/run/a", ""), ("", "host:7683")]
    assert {run.owner for run in plans[0].runs} == {0, 1}
    assert plans[0].key == job_key(bytes([1]) * 32, "j", 0)


def test_a_key_is_that_of_one_start_of_one_job(key_file: Path) -> None:
    def key(**changes: object) -> bytes:
        return make_plan(key_file, **changes).plan(LAYOUT, rule="sum", after_epoch=0).key

    assert len({key(), key(job="k"), key(start=1)}) == 3


def test_owners_that_are_given_are_taken(key_file: Path) -> None:
    owners = [1] * (len(LAYOUT.chunks) - 1) + [0]

    plan = make_plan(key_file, owners=owners).plan(LAYOUT, rule="sum", after_epoch=0)

    assert [(run.count, run.owner) for run in plan.runs] == [(len(owners) - 1, 1), (1, 0)]
    with pytest.raises(ConfigError, match="owners: the plan has 1 chunks"):
        make_plan(key_file, owners=[0]).plan(LAYOUT, rule="sum", after_epoch=0)


def test_a_newer_plan_never_comes(key_file: Path) -> None:
    source = make_plan(key_file)
    source.close()

    with pytest.raises(Unavailable):
        source.plan(LAYOUT, rule="sum", after_epoch=1)


@pytest.mark.parametrize(
    ("service", "changes", "problem"),
    [
        (("file:/a",), {}, "'file:/a' is no endpoint"),
        (("unix:/a", "unix:/a"), {}, "named twice"),
        (tuple(f"tcp:h:{at}" for at in range(1, 66)), {}, "65 Aggregators are named"),
        ((), {"job": ""}, "a job's name"),
        ((), {"rank": 2}, "rank 2 of 2"),
        ((), {"members": 65}, "65 members"),
        ((), {"start": -1}, "start -1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    key_file: Path, service: tuple[str, ...], changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        make_plan(key_file, *service, **changes)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("launcher", "rank", "job"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "run"}, 1, "run"),
        ({"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "78"}, 1, "78"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77"}, 3, "77"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "FARSIDE_AGGREGATION_JOB": "mine"}, 2, "mine"),
    ],
)
def test_launchers_say_rank_and_job(key_file: Path, launcher: dict[str, str], rank: int, job: str) -> None:
    told = {"FARSIDE_AGGREGATION_SERVICE": "unix:/a, tcp:h:1", "FARSIDE_AGGREGATION_KEY_FILE": str(key_file)}

    source = static_plan_from(told | launcher)

    assert (source.rank, source.members, source.job) == (rank, 4, job)


@pytest.mark.parametrize(
    ("launcher", "here"),
    [
        ({"RANK": "1", "WORLD_SIZE": "7", "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"RANK": "1", "WORLD_SIZE": "7"}, 1),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "7", "SLURM_NODEID": "0"}, 7),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "odd"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "7", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"PMI_RANK": "1", "PMI_SIZE": "7", "MPI_LOCALNRANKS": "4"}, 4),
    ],
)
def test_launchers_say_how_many_members_share_a_machine(launcher: dict[str, str], here: int) -> None:
    assert launched_as(launcher) == (1, 7, here)


def test_a_process_that_no_launcher_started_has_no_rank() -> None:
    assert launched_as({"SLURM_NTASKS": "7", "RANK": ""}) is None


def test_runs_that_torchrun_gives_no_name_are_not_one_job(key_file: Path) -> None:
    launcher = {"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
    told = {"FARSIDE_AGGREGATION_SERVICE": "unix:/a", "FARSIDE_AGGREGATION_KEY_FILE": str(key_file)}

    with pytest.raises(ConfigError, match=r"JOB is not set; give the job a name, .*--rdzv-id"):
        static_plan_from(told | launcher)


@pytest.mark.parametrize(
    ("left_out", "problem"),
    [
        ("FARSIDE_AGGREGATION_SERVICE", "in no Farside job"),
        ("FARSIDE_AGGREGATION_KEY_FILE", "KEY_FILE is not set"),
        ("FARSIDE_AGGREGATION_JOB", "JOB is not set"),
        ("RANK", "this process has no rank"),
    ],
)
def test_an_environment_that_lacks_something_says_what(
    key_file: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, problem: str
) -> None:
    told = {
        "FARSIDE_AGGREGATION_SERVICE": "unix:/a",
        "FARSIDE_AGGREGATION_KEY_FILE": str(key_file),
        "FARSIDE_AGGREGATION_JOB": "j",
        "RANK": "0",
        "WORLD_SIZE": "2",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_PROCID", "FARSIDE_AGGREGATION", left_out):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(ConfigError, match=problem):
        source_from_environment()


def test_an_aggregator_that_never_comes_is_named(key_file: Path, tmp_path: Path) -> None:
    source = make_plan(key_file, f"unix:{tmp_path}/none.sock", members=1)
    session = MemberSession(source, rule="sum", tensors=LAYOUT.tensors)
    try:
        with pytest.raises(Exception, match=r"/none.sock: No such file or directory; start it there") as refused:
            session.connect(limit_s=0.05)
    finally:
        session.close()

    assert "\n" not in str(refused.value)


def test_a_rule_that_a_format_has_not_is_refused_at_the_start(key_file: Path) -> None:
    with pytest.raises(ConfigError, match="'a' is of i64, which can only be summed"):
        MemberSession(make_plan(key_file), rule="adam", tensors=[Tensor("a", 1, "i64")])
