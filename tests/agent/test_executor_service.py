"""The node service `executor`: which tasks take turns, told by their processes, and where tasks ask for their turns."""

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from farside.agent import messages as m
from farside.agent.service.executor import SPILL_OFFER, SPILL_OFFER_BYTES, VARIABLE, ExecutorService, TaskName
from farside.agent.training.alpha import Use
from farside.agent.training.subtask import INIT_COMP, position_of
from farside.group_time import ReadCost
from farside.training.loop import spilling
from farside.training.loop.turns import EXECUTOR, SharedNode
from tests.agent.frames import start as a_start
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.train.executors import executor


def service(
    folder: Path,
    supervisors: dict[TaskName, int] | None = None,
    *,
    admin: str = "x.admin",
    spill_dir: Path | None = None,
) -> ExecutorService:
    return ExecutorService(
        folder / "x.sock", folder / admin, spill_dir=spill_dir, supervisors=lambda: supervisors or {}
    )  # fmt: skip


def said(by: ExecutorService) -> m.ExecutorFacts:
    asyncio.run(by.look())
    return msgspec.json.decode(by.facts(), type=m.ExecutorFacts)


def play(turns: SharedNode, iterations: int) -> None:
    """A worker's iterations, which take no time."""
    for position in range(INIT_COMP, position_of(iterations, "PULL")):
        turns.ask(position)
        turns.done()


def test_a_worker_is_the_task_whose_supervisor_is_its_parent(tmp_path: Path) -> None:
    with executor(tmp_path):
        turns = SharedNode(str(tmp_path / "x.sock"), job="whatever it says", worker=0, workers=1)
        play(turns, 9)

        by = service(tmp_path, {("7", 2, 3): os.getppid()})
        # The executor may answer this connection before it has read the last word of the other.
        until(lambda: [one.turns for one in said(by).takers] == [29], what="every turn is over")
        ours = said(by)
        nobodys = said(service(tmp_path, {("7", 2, 3): 1 << 22}))
        turns.close()

    assert [(one.job, one.rank, one.start, one.turns) for one in ours.takers] == [("7", 2, 3, 29)]
    assert 0 < ours.takers[0].comp_s < ours.takers[0].iteration_s
    used = ours.takers[0].processor
    assert used is not None
    assert (used.rest_s > 0, used.others_s, used.processors) == (True, 0, len(os.sched_getaffinity(0)))
    assert (nobodys.takers, nobodys.others) == ((), 1)


def test_where_no_executor_answers_nothing_is_said_of_turns(tmp_path: Path) -> None:
    with executor(tmp_path):
        by = service(tmp_path)
        assert said(by).is_there
        assert by.metrics() == {"is_there": 1.0, "takers": 0, "others": 0, "group": 0}

    assert said(by) == m.ExecutorFacts()


def test_what_is_no_executor_is_not_believed(tmp_path: Path) -> None:
    with executor(tmp_path), socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other"))
        other.listen()
        other.close()

        assert said(service(tmp_path, admin="other")) == m.ExecutorFacts()


def test_a_task_is_told_where_to_ask_unless_it_says_so_itself_or_nobody_is_there(tmp_path: Path) -> None:
    assert VARIABLE == EXECUTOR
    start = a_start("7.0")
    own = replace(start, spec=replace(start.spec, env={VARIABLE: ""}))
    by = service(tmp_path)

    assert by.variables(start) == {}
    (tmp_path / "x.sock").touch()
    assert by.variables(start) == {VARIABLE: str(tmp_path / "x.sock")}
    assert by.variables(own) == {}
    assert by.variables(replace(start, spec=replace(start.spec, world_size=2))) == {}
    none = ExecutorService(None, None, supervisors=dict)
    assert none.variables(start) == {}


def test_a_worker_of_a_group_of_nodes_is_told_where_to_ask(tmp_path: Path) -> None:
    start = a_start("7.0")
    (tmp_path / "x.sock").touch()

    told = service(tmp_path).variables(replace(start, spec=replace(start.spec, world_size=2, takes_turns=True)))

    assert told == {VARIABLE: str(tmp_path / "x.sock")}


def test_an_executor_is_told_its_group_once_and_so_is_the_one_that_replaces_it(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    group = m.GroupOrder(epoch=5, node="a", nodes=("a", "b"), synchronizer=where, key=bytes(32))
    with executor(tmp_path, "--group-listen", where) as shared:
        by = service(tmp_path)
        assert (said(by).listen, said(by).group) == (where, 0)

        by.obey(msgspec.Raw(msgspec.json.encode(m.ExecutorOrder(group=group))))
        assert said(by).group == shared.status()["group"] == 5
        shared.kill()
        until(lambda: shared.status() and shared.status()["group"] == 0, what="another executor")
        assert said(by).group == 5

        by.obey(msgspec.Raw(msgspec.json.encode(m.ExecutorOrder())))
        assert said(by).group == 0
    with executor(tmp_path):  # which other nodes can't reach
        assert said(by) == m.ExecutorFacts(is_there=True)


def test_what_is_no_order_is_refused(tmp_path: Path) -> None:
    good = m.GroupOrder(epoch=5, node="a", nodes=("a", "b"), synchronizer="h:1", key=bytes(32))
    for wrong in ({"nodes": ["a"]}, {"nodes": ["b", "c"]}, {"nodes": ["a", "a"]}, {"epoch": 0}, {"key": "AA"}):
        order = {"group": msgspec.to_builtins(good) | wrong}
        with pytest.raises(msgspec.MsgspecError):
            service(tmp_path).obey(msgspec.Raw(msgspec.json.encode(order)))


def test_a_co_located_task_is_told_where_input_may_go_and_how_much_memory_it_has(tmp_path: Path) -> None:
    assert (SPILL_OFFER, SPILL_OFFER_BYTES) == (spilling.SPILL_OFFER, spilling.SPILL_OFFER_BYTES)
    start = a_start("7.0")
    spec = replace(start.spec, may_spill=True, memory_bytes=5 << 20)
    by = service(tmp_path, spill_dir=tmp_path / "blocks")

    assert by.variables(replace(start, spec=spec)) == {
        SPILL_OFFER: str(tmp_path / "blocks"), SPILL_OFFER_BYTES: str(5 << 20),
    }  # fmt: skip
    assert by.variables(start) == {}
    assert by.variables(replace(start, spec=replace(spec, env={SPILL_OFFER: ""}))) == {}
    assert service(tmp_path).variables(replace(start, spec=spec)) == {}


def a_use(**more: object) -> Use:
    known: dict[str, object] = {
        "job": "", "spilled": 0.25, "iteration_s": 1.0, "comp_s": 0.5, "input_bytes": 1000, "used_bytes": 10,
        "disk": ReadCost(bytes_s=1e6, cpu_s_byte=1e-9), "wait_s": 0.125, "disk_bytes": 700, "waited_s": 3.5,
    }  # fmt: skip
    return Use(**{**known, **more})  # type: ignore[arg-type]


def test_what_a_task_says_of_its_input_comes_to_the_manager_as_one_record(tmp_path: Path) -> None:
    with executor(tmp_path):
        turns = SharedNode(str(tmp_path / "x.sock"), job="j", worker=0, workers=1, spills=True)
        by = service(tmp_path, {("7", 0, 1): os.getppid()}, spill_dir=tmp_path)
        turns.ask(INIT_COMP)
        assert said(by).takers[0].spill is None
        assert said(by).spills
        assert not said(service(tmp_path)).spills

        turns.tell(a_use(peer=ReadCost(bytes_s=2e6), peer_bytes=30))
        until(lambda: said(by).takers[0].spill is not None, what="the record")
        (told,) = said(by).takers
        turns.close()

    assert told.spill == m.SpilledInput(
        spilled=0.25, by_peer=30 / 730, input_bytes=1000, disk_bytes=700, peer_bytes=30, waited_s=3.5, wait_s=0.125,
        disk_bytes_s=1e6, disk_cpu_s_byte=1e-9, peer_bytes_s=2e6,
    )  # fmt: skip
    assert told.spill is not None
    assert told.spill.work_s(0.5) == 0.375
    assert told.spill.work_s(0.1) > 0


def test_an_executor_of_the_version_before_has_no_place_for_input(tmp_path: Path) -> None:
    jobs = {
        "0:j": {
            "pid": os.getpid(), "step_s": {}, "iteration_s": 0.0, "turns": 1, "let_through": 0, "overdue": 0,
        }
    }  # fmt: skip

    found = service(tmp_path, {("7", 0, 1): os.getpid()}, spill_dir=tmp_path)._facts_of({"jobs": jobs})

    assert not found.spills
    assert [(one.spill, one.processor) for one in found.takers] == [(None, None)]


def test_many_tasks_with_long_records_say_no_more_than_a_service_may(tmp_path: Path) -> None:
    spill = {
        "spilled": 1 / 3, "by_peer": 1 / 7, "input_bytes": 2**62, "disk_bytes": 2**62, "peer_bytes": 2**62,
        "waited_s": 1e8 / 3, "wait_s": 1 / 3, "disk_bytes_s": 1e12 / 3, "disk_cpu_s_byte": 1e-9 / 3,
        "peer_bytes_s": 1e12 / 3, "peer_cpu_s_byte": 1e-9 / 3,
    }  # fmt: skip
    one = {
        "pid": os.getpid(), "step_s": {"COMP": 1 / 3, "PUSH": 1 / 3}, "iteration_s": 1 / 3, "turns": 10**6,
        "let_through": 10**6, "overdue": 10**6, "spill": spill,
        "processor": {"comp_s": 1 / 3, "rest_s": 1 / 7, "others_s": 1 / 9, "processors": 64},
    }  # fmt: skip

    facts = service(tmp_path, {("7", 0, 1): os.getpid()})._facts_of({"jobs": {f"0:{n}": one for n in range(64)}})

    assert len(facts.takers) == 64
    assert len(msgspec.json.encode(facts)) <= m.SERVICE_BYTES_MAX
    assert facts.takers[0].spill is not None
    assert all(taker.processor is None for taker in facts.takers)
    assert (facts.takers[-1].spill, facts.takers[-1].processor) == (None, None)
