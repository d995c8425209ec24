"""What jobs whose input does not fit in memory are judged by, and limits of the kernel."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.colocation import INSIDE, check_turns, in_namespace
from benchmarks.colocation_spill import PARTS, Bar, _in_turn, _keep, _worst, threads_of_a_job, told
from benchmarks.colocation_spill_bench import Played, write_input
from farside.cli.demo.colocated_job import digest
from farside.errors import Unavailable
from farside.training.app.dataset import load
from farside.training.app.program import Options
from farside.training.loop.spill_file import Buffer, file_in
from tests.support.kernel_limit import MemoryLimit, ReadLimit


def test_a_bar_is_met_by_the_median_and_not_judged_where_computing_was_too_uneven() -> None:
    values = [1.2, 1.31, 1.29]

    assert Bar(what="a", values=values, most=1.3).row == ["a", "1.29 (1.20 to 1.31)", "at most 1.3", "yes"]
    assert Bar(what="a", values=values, most=1.28).met == "no"
    assert Bar(what="a", values=values, most=1.28, spread=0.16).met == "too noisy"
    assert Bar(what="a", values=[0], most=0, form="{:.0f}").row == ["a", "0", "at most 0", "yes"]
    assert Bar(what="a", values=values).met == "-"


def test_what_was_not_judged_is_said_and_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = "memory: left out: no limit on memory"

    assert told({"missed": [], "not judged": [left_out]}) == 1
    assert capsys.readouterr().out == f"not judged:\n{left_out}\n"
    assert told({"missed": ["climb: a"], "not judged": []}) == 1
    assert capsys.readouterr().out == "missed:\nclimb: a\n"
    assert told({"missed": [], "not judged": []}) == 0
    assert capsys.readouterr().out == "no bar is missed\n"


def test_models_with_the_same_objective_and_other_bits_have_other_digests() -> None:
    model = {"b": np.arange(4.0), "a": np.zeros((2, 3), order="F")}
    other = {"a": np.zeros((2, 3)), "b": np.arange(4.0)}

    assert digest(model) == digest(other)
    for change in ({"b": -0.0 * np.arange(4.0)}, {"a": np.zeros((3, 2))}, {"a": np.zeros((2, 3), dtype=np.int64)}):
        assert digest(other | change) != digest(other)


def test_steps_without_a_turn_are_counted() -> None:
    rows = [["0:j", number, "COMP", 0, 0, 0, number > 4] for number in range(9)]

    check_turns(rows, 2)
    with pytest.raises(AssertionError, match="5 subtasks without a turn"):
        check_turns(rows, 1)


def test_a_signal_reaches_what_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[Any] = []
    monkeypatch.delenv(INSIDE, raising=False)
    monkeypatch.setattr(os, "execvpe", lambda *words: began.append(words))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)

    in_namespace()  # the same process goes on as that command

    ((program, argv, variables),) = began
    assert (program, argv[:2], variables[INSIDE]) == ("unshare", ["unshare", "-n"], "1")


def test_a_processor_is_left_to_what_reads_and_sums() -> None:
    assert [threads_of_a_job(processors) for processors in (1, 2, 8)] == [1, 1, 7]


def test_the_iterations_of_the_round_with_the_greatest_ratio_are_kept() -> None:
    rounds = [
        Played(makespan_s=1.0, models={}, pushes_ns={}, comp_s={}, net_s={}, reports={"a": {"iterations": [line]}})
        for line in ("first", "second", "third")
    ]

    assert _worst([1.0, 2.9, 1.1], rounds) == {"worst_round": {"a": ["second"]}}


def test_cases_begin_with_another_one_in_each_round() -> None:
    cases = {"a": 1, "b": 2, "c": 3}

    assert [[name for name, _ in _in_turn(cases, number)] for number in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"],
    ]  # fmt: skip


def test_a_part_that_is_measured_again_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    output = tmp_path / "spill.json"
    for part, value in (("memory", 1), ("death", 2), ("memory", 3)):
        _keep(part, {"value": value}, output)

    assert json.loads(output.read_bytes()) == {"parts": {"memory": {"value": 3}, "death": {"value": 2}}}
    assert list(PARTS) == ["memory", "chooser-computing", "chooser-communicating", "climb", "death"]


def test_a_group_is_as_slow_as_its_slowest_job_and_its_longest_pause_is_found() -> None:
    second = 10**9
    played = Played(
        makespan_s=9.0, models={},
        pushes_ns={
            "a": {0: 0, 1: second, 2: 2 * second, 3: 6 * second, 4: 20 * second}, "b": {0: 0, 1: second, 2: 6 * second},
        },
        comp_s={"a": {0: 9.0, 1: 1.0, 2: 2.0}}, net_s={}, reports={},
    )  # fmt: skip

    assert played.iteration_s(2) == pytest.approx(3.0)  # of b; a was alone in its last one
    assert played.iteration_s(1) == pytest.approx(5.0)
    assert played.iteration_s(9) == pytest.approx(3.0)
    assert played.longest_s(7 * second) == pytest.approx(14.0)
    assert played.computed_s("a", 1) == pytest.approx(1.5)
    assert played.spread(1) == pytest.approx(0.4714, rel=1e-3)


def test_an_input_that_is_written_is_the_one_that_was_drawn(tmp_path: Path) -> None:
    for app in ("mlr", "nmf"):
        drawn = Options(app=app, data="synthetic", rows=40, columns=5, classes=3, components=2, blocks=4)
        written = load(write_input(drawn, tmp_path / f"{app}.npy"), lets_go=True)

        for block, other in zip(load(drawn).blocks, written.blocks, strict=True):
            if app == "nmf":
                assert block.tobytes() == other.tobytes()
            else:
                assert (block[0] == other[0][:, :-1]).all()
                assert (block[1] == other[1]).all()


def test_the_kernel_kills_what_takes_more_memory_than_its_limit() -> None:
    try:
        limit = MemoryLimit(48 << 20, "test-memory")
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        argv = ["sh", "-c", f"{limit.enter}head -c 200000000 /dev/zero | tail -c 100000000 | wc -c"]
        subprocess.run(argv, capture_output=True, check=False)
        assert limit.kills > 0
    finally:
        limit.close()


def test_the_kernel_holds_reads_down_to_a_limit(tmp_path: Path) -> None:
    try:
        limit = ReadLimit(tmp_path, 8 << 20, "test-reads")
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        file, buffer = file_in(tmp_path), Buffer(4 << 20)
        buffer.view(4 << 20)[:] = os.urandom(4 << 20)
        file.write(buffer.view(4 << 20), 0)
        reading = (
            "import os, sys\nfrom farside.training.loop.spill_file import BlockFile, Buffer\n"
            "buffer = Buffer(4 << 20)\nBlockFile(int(sys.argv[1]), 'x', None).read(buffer.view(4 << 20), 0)\n"
        )
        began_s = time.monotonic()
        argv = ["sh", "-c", f'{limit.enter}exec "$@"', "sh", sys.executable, "-c", reading, str(file.fd)]
        subprocess.run(argv, check=True, pass_fds=[file.fd])
        assert time.monotonic() - began_s > 0.4
        file.close()
    finally:
        limit.close()
