"""What a member does wrong ends in one line at that member, and in a counter at the Aggregator."""

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from farside.agent.aggregator.door import NONCE_BYTES, Attach, Caller, Invite, Refused, Welcome
from farside.agent.aggregator.entrance import STRANGERS_MAX
from farside.agent.aggregator.layout import WORKERS_OWN, Tensor, make_layout
from farside.agent.aggregator.plan import job_key
from farside.errors import FarsideError
from farside.training.member import MemberSession
from tests.aggregation.service import KEY, TENSORS, Service, push, put_start, service, source, training
from tests.support.waiting import until

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")
NOBODY = 65534


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all of these: none of them harms it."""
    with service(tmp_path_factory.mktemp("service"), memory_bytes="8MiB", max_jobs="3", keep_s="0") as made:
        yield made


def refused(
    one: Service, *, folder: Path | None = None, tensors: tuple[Tensor, ...] = TENSORS, rule: str = "sum", **more: Any
) -> str:
    """The line that a member gets which must not get in."""
    plan = source(folder or one.folder, [one.unix], more.pop("rank", 0), **more)
    session = MemberSession(plan, rule=rule, tensors=tensors)
    try:
        with pytest.raises(FarsideError) as why:
            session.connect(limit_s=0.2)
    finally:
        session.close()
    assert "\n" not in str(why.value)
    return str(why.value)


def test_a_wrong_key_is_refused(one: Service, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    (tmp_path / "key").chmod(0o600)

    assert "the job's key is not of this Aggregator's key_file; name the same file at both" in refused(
        one, folder=tmp_path
    )


def test_another_model_is_refused_by_the_name_of_its_tensor(one: Service) -> None:
    with training([source(one.folder, [one.unix], rank, job="model") for rank in (0, 1)], "sum"):
        other = (TENSORS[0], Tensor("norm.weight", 301, "f32"), TENSORS[2])

        line = refused(one, job="model", rank=1, tensors=other)

    assert "another one than rank 0's: tensor 'norm.weight': elements 301 here and 300 at rank 0" in line


def test_a_tensor_of_another_shape_is_refused_and_one_that_says_none_is_not(one: Service) -> None:
    mine, theirs = Tensor("w", 128, "f32", shape=(8, 16)), Tensor("w", 128, "f32", shape=(16, 8))
    with training([source(one.folder, [one.unix], rank, job="shape") for rank in (0, 1)], "sgd", (mine,)):
        line = refused(one, job="shape", rank=1, rule="sgd", tensors=(theirs,))

    assert "another one than rank 0's: tensor 'w': shape 16x8 here and 8x16 at rank 0" in line
    plans = [source(one.folder, [one.unix], rank, job="unsaid") for rank in (0, 1)]
    with training(plans[:1], "sgd", (mine,)), training(plans[1:], "sgd", (Tensor("w", 128, "f32"),)):
        pass


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rule": "mean"}, "the rule is mean here and sum at rank 0"),
        ({"members": 3}, "the number of members is 3 here and 2 at rank 0"),
    ],
)
def test_members_must_agree(one: Service, changes: dict[str, Any], problem: str) -> None:
    with training([source(one.folder, [one.unix], rank, job="agree") for rank in (0, 1)], "sum") as job:
        assert problem in refused(one, job="agree", rank=1, **changes)

        job.step()


def test_another_update_is_refused_as_that(one: Service) -> None:
    workers_own = Tensor(WORKERS_OWN, 3, "f32", 1)
    with training([source(one.folder, [one.unix], rank, job="update") for rank in (0, 1)], "sgd"):
        line = refused(one, job="update", rank=1, rule="mean", tensors=(workers_own, *TENSORS))

    assert line.endswith("update is 'worker' here and 'server' at rank 0; let all ranks say the same")


def test_one_aggregator_by_two_addresses_is_refused_as_named_twice(one: Service) -> None:
    other = Path(one.unix.removeprefix("unix:")).with_name("b.sock")  # a socket's path is short
    other.symlink_to(one.unix.removeprefix("unix:"))
    plan = source(one.folder, [one.unix, f"unix:{other}"], 0, job="two addresses")
    session = MemberSession(plan, rule="sgd", tensors=TENSORS)
    try:
        with pytest.raises(FarsideError, match="one Aggregator is named twice, as number 1 and 2 of the list"):
            session.connect(partial(put_start, session))
    finally:
        session.close()


def test_an_aggregator_that_is_out_of_memory_says_so(one: Service) -> None:
    large = (Tensor("embedding.weight", 3 << 20, "f32"),)

    line = refused(one, job="large", rule="adam", tensors=large)

    assert "the Aggregator is out of memory: job large needs more than what is left of 8 MiB (memory_bytes)" in line
    assert all(job["job"] != "large" for job in one.status()["jobs"])


def test_one_job_too_many_is_refused(one: Service) -> None:
    small = (Tensor("a", 10, "f32"),)
    plans = [[source(one.folder, [one.unix], 0, job=f"many-{at}", members=1)] for at in range(3)]
    with training(plans[0], "sum", small), training(plans[1], "sum", small), training(plans[2], "sum", small):
        assert "has 3 jobs, which are all it may have (max_jobs)" in refused(one, job="many-3", members=1)


def test_a_member_whose_place_another_process_has_taken_is_told(one: Service) -> None:
    with training([source(one.folder, [one.unix], rank, job="twice") for rank in (0, 1)], "sgd") as job:
        job.step()
        second = MemberSession(source(one.folder, [one.unix], 1, job="twice"), rule="sgd", tensors=TENSORS)
        try:
            second.connect()
            assert second.first_version == 1

            with pytest.raises(FarsideError, match="another process of rank 1 has come since"):
                job.sessions[1].wait(0, job.chunks, 2)
        finally:
            second.close()


def test_a_rank_that_waits_for_another_says_so(
    one: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("farside.training.member.QUIET_S", 0.0)
    with training([source(one.folder, [one.unix], rank, job="waits") for rank in (0, 1)], "sgd") as job:
        push(job.sessions[0], 0, 1)

        with pytest.raises(TimeoutError):
            job.sessions[0].wait(0, job.chunks, 1, timeout_s=0.01)

        assert "job waits: no result of iteration 1 for 0 s; another rank computes longer" in caplog.text


def test_a_rank_of_a_job_that_only_sums_does_not_come_back_alone(one: Service) -> None:
    with training([source(one.folder, [one.unix], rank, job="sums") for rank in (0, 1)], "sum") as job:
        job.step()

        assert "rank 1 comes anew to a job that has begun and only sums" in refused(one, job="sums", rank=1)


def test_a_world_of_one_trains(one: Service) -> None:
    with training([source(one.folder, [one.unix], 0, job="alone", members=1)], "sgd") as job:
        job.step(2)


# --- callers that are no sessions


def attach(one: Service, region: int | None, **changes: Any) -> Welcome | Refused:
    """The answer to a request that is made by hand."""
    fields: dict[str, Any] = {
        "number": 0, "rank": 0, "members": 1, "rule": "sum", "tensors": TENSORS, "life": 1, "has_region": True,
        "runs": source(one.folder, [one.unix], 0).plan(make_layout(TENSORS), rule="sum", after_epoch=0).runs,
    }  # fmt: skip
    request = Attach(**{**fields, **changes})
    key = job_key(bytes.fromhex(KEY), "by hand", 0)
    caller = Caller(key, job="by hand", start=0, nonce=secrets.token_bytes(NONCE_BYTES), request=request)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(one.unix.removeprefix("unix:"))
        answer = None
        while answer is None:
            if data := caller.to_send():
                socket.send_fds(sock, [data], [region] if region is not None and caller.is_proved else [])
            answer = caller.receive(sock.recv(caller.needed))
    assert not isinstance(answer, Invite)
    return answer


def test_a_region_that_is_short_unsealed_or_missing_is_refused(one: Service) -> None:
    unsealed = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 64 << 20)
    short = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    os.ftruncate(short, 4096)
    fcntl.fcntl(short, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)

    lines = [attach(one, region) for region in (unsealed, short, None)]

    assert [line.line.split(";")[0] for line in lines if isinstance(line, Refused)] == [
        "the region is not sealed against shrinking",
        "the region is shorter than the model needs",
        "the descriptor of the region did not come along",
    ]
    os.close(unsealed)
    os.close(short)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rank": 5}, "rank 5 of 1 members"),
        ({"runs": ()}, "it says nothing of owners"),
        ({"rule": "lamb"}, "no rule of aggregation"),
        ({"tensors": (Tensor("a", 1, "f32"), Tensor("a", 1, "f32"))}, "declared twice"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(one: Service, changes: dict[str, Any], problem: str) -> None:
    answer = attach(one, None, **changes)

    assert isinstance(answer, Refused)
    assert problem in answer.line


def test_aggregators_in_another_order_are_refused_by_their_place_in_the_list(one: Service) -> None:
    with training([source(one.folder, [one.unix], 0, job="by hand", members=1)], "sum"):
        answer = attach(one, None, number=1)

    assert isinstance(answer, Refused)
    assert "is number 2 of the list here and 1 at rank 0; name each once, in the same order on all" in answer.line


def descriptors_of(one: Service) -> int:
    """How many its server has open."""
    return len(os.listdir(f"/proc/{one.server_pid}/fd"))


@pytest.mark.parametrize("at_once", [2, 3, 100])
def test_a_stranger_leaves_no_descriptor_behind(one: Service, at_once: int) -> None:
    before = descriptors_of(one)
    for _stranger in range(20):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(one.unix.removeprefix("unix:"))
            socket.send_fds(sock, [b"\0"], [0] * at_once)
            sock.settimeout(30)
            assert b"more than one descriptor came along" in sock.recv(1000)

    until(lambda: descriptors_of(one) <= before, what="the server's descriptors")


def test_a_stranger_cannot_pile_descriptors_up(one: Service) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(one.unix.removeprefix("unix:"))
        socket.send_fds(sock, [b"\0"], [0])
        socket.send_fds(sock, [b"\0"], [0])
        sock.settimeout(30)

        assert b"more than one descriptor came along" in sock.recv(1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_strangers_of_one_user_take_no_place_of_another_users(one: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(one.folder)
    one.folder.chmod(0o711)
    name = os.path.basename(one.unix)
    with contextlib.ExitStack() as stack:

        def connected() -> socket.socket:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.settimeout(60)
            sock.connect(name)
            return sock

        mine = connected()
        os.seteuid(NOBODY)
        try:
            theirs = [connected() for _stranger in range(STRANGERS_MAX + 1)]
        finally:
            os.seteuid(0)
        assert theirs[0].recv(1) == b""  # that one has made room
        mine.sendall(bytes(4))
        assert mine.recv(1) != b""  # mine is told that this is no message


def test_strangers_keep_nobody_out_and_random_bytes_end_only_themselves(one: Service) -> None:
    strangers: list[socket.socket] = []
    for _stranger in range(STRANGERS_MAX + 20):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(one.unix.removeprefix("unix:"))
        sock.sendall(secrets.token_bytes(3) if len(strangers) % 2 else secrets.token_bytes(40))
        strangers.append(sock)
    try:
        with training([source(one.folder, [one.unix], 0, job="meanwhile", members=1)], "sum") as job:
            job.step()
    finally:
        for sock in strangers:
            sock.close()

    told = until(lambda: one.status()["refused"].get("nonsense"), what="strangers counted")
    assert told > 0
