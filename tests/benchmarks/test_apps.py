"""The applications' benchmark without its machines: mixes, plan, what is kept, figures, and the document."""

import random
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from benchmarks.apps import counters, paper
from benchmarks.apps.__main__ import RESULTS
from benchmarks.apps.back_end import set_up
from benchmarks.apps.counters import busy_s, process_s
from benchmarks.apps.document import DOCS, REMARKS, memory_plot
from benchmarks.apps.meter import Reading
from benchmarks.apps.mix import ETC, MIXES, SET_BIT, SYS, Mix, packed, payload_bytes, script
from benchmarks.apps.pin import mapped_files
from benchmarks.apps.plan import BACK_ENDS, CellTask, RetreatTask, UpsetTask, tasks, without_troubled
from benchmarks.apps.render import MISSING, document
from benchmarks.apps.result import (
    BackEnd,
    Cell,
    Level,
    Moment,
    Results,
    Retreat,
    Upset,
    Upsets,
    Window,
    Workload,
    load,
    save,
)
from benchmarks.apps.summary import above_idle, event_loss_pct, loss_pct, p99_gain, slower, summary, throughput_gain
from farside.errors import ConfigError
from tests.vm.harness.guest import Guest

ALL = tuple(BackEnd)
EVERY = tuple(Workload)
MIB = 1 << 20


def window(per_s: float, **settings: float) -> Window:
    figures = {"p50_us": 500.0, "p99_us": 9000.0, "max_us": 20_000.0, **settings}
    return Window(operations=round(per_s * 4), seconds=4.0, failed=0, **figures)  # type: ignore[arg-type]


def cell(workload: Workload, back_end: BackEnd, *per_s: float, p99_us: float = 9000.0) -> Cell:
    """At 100, 75 and 50 percent."""
    levels = tuple(
        Level(percent=percent, limit_bytes=40 * MIB * percent // 100, windows=(window(rate, p99_us=p99_us),) * 3)
        for percent, rate in zip((100, 75, 50), per_s, strict=False)
    )
    date = "2026-01-02T03:04:05+00:00"
    return Cell(workload=workload, back_end=back_end, date=date, working_set_bytes=40 * MIB, levels=levels)


def results(*cells: Cell) -> Results:
    return Results(cells={one.key: one for one in cells})


# --- mixes


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_a_mix_has_its_share_of_sets(mix: Mix) -> None:
    requests = script(mix, random.Random(1), request_count=20_000).requests

    assert sum(bool(one & SET_BIT) for one in requests) / 20_000 == pytest.approx(mix.set_share, abs=0.01)
    assert all(one & ~SET_BIT < mix.key_count for one in requests)


def test_etc_has_keys_of_16_bytes_and_nine_tenths_of_its_values_from_16_to_512() -> None:
    made = script(ETC, random.Random(1), request_count=1)

    small = sum(16 <= size <= 512 for size in made.value_bytes)
    assert set(made.key_bytes) == {16}
    assert small / ETC.key_count == pytest.approx(0.9, abs=0.01)


def test_sys_has_the_papers_shares_of_keys_and_values() -> None:
    made = script(SYS, random.Random(1), request_count=1)

    short = sum(16 <= size <= 20 for size in made.key_bytes) / SYS.key_count
    middling = sum(320 <= size <= 500 for size in made.value_bytes) / SYS.key_count
    small = sum(size < 320 for size in made.value_bytes) / SYS.key_count
    assert short == pytest.approx(0.4, abs=0.01)
    assert middling == pytest.approx(0.8, abs=0.01)
    assert small == pytest.approx(0.08, abs=0.01)
    assert max(made.key_bytes) <= 45
    assert max(made.value_bytes) <= 10_000


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_a_mix_is_tens_of_mib(mix: Mix) -> None:
    assert 25 * MIB < payload_bytes(script(mix, random.Random(1), request_count=1)) < 60 * MIB


def test_the_same_seed_gives_the_same_script() -> None:
    one, other = (script(SYS, random.Random(7), request_count=100) for _ in range(2))

    assert packed(one) == packed(other)


def test_a_packed_script_holds_counts_sizes_and_requests() -> None:
    small = replace(ETC, key_count=3)
    made = script(small, random.Random(1), request_count=5)

    raw = packed(made)

    assert struct.unpack_from("<II", raw) == (3, 5)
    assert struct.unpack_from("<6H", raw, 8)[::2] == made.key_bytes
    assert struct.unpack_from("<6H", raw, 8)[1::2] == made.value_bytes
    assert struct.unpack_from("<5I", raw, 20) == made.requests
    assert len(raw) == 40


# --- plan


def test_every_cell_of_every_back_end_is_measured_and_then_the_events() -> None:
    found = tasks(Results(), back_ends=ALL, workloads=EVERY, events=True)

    cells = [task for task in found if isinstance(task, CellTask)]
    assert [task.back_end for task in cells] == list(BACK_ENDS)
    assert set(BACK_ENDS) == set(BackEnd)
    assert all(task.workloads == EVERY for task in cells)
    assert sum(isinstance(task, UpsetTask) for task in found) == 1
    assert sum(isinstance(task, RetreatTask) for task in found) == 4


def test_a_second_call_goes_on_where_the_first_stopped() -> None:
    done = results(*(cell(workload, BackEnd.DISK, 9, 8, 7) for workload in (Workload.ETC, Workload.SYS)))

    first = tasks(done, back_ends=ALL, workloads=EVERY, events=False)[0]

    assert first == CellTask(back_end=BackEnd.DISK, workloads=(Workload.ORDERS, Workload.PAGERANK))


def test_nothing_is_left_when_all_is_measured_or_tried() -> None:
    cells = [cell(workload, back_end, 9, 8, 7) for workload in Workload for back_end in BackEnd]
    cells[0] = replace(cells[0], levels=(), trouble="not set up")
    retreats = [
        Retreat(workload=workload, is_lending=lends, date="") for workload in EVERY[:2] for lends in (True, False)
    ]
    done = replace(results(*cells), upsets=Upsets(date=""), retreats={one.key: one for one in retreats})

    assert tasks(done, back_ends=ALL, workloads=EVERY, events=True) == []
    assert tasks(without_troubled(done), back_ends=ALL, workloads=EVERY, events=True) == [
        CellTask(back_end=cells[0].back_end, workloads=(cells[0].workload,))
    ]


class Told:
    """Stands for a guest: keeps what is to be run there."""

    def __init__(self) -> None:
        self.address, self.commands = "10.0.0.1", list[str]()

    def run(self, command: str, **_: object) -> str:
        self.commands.append(command)
        return "1"


@pytest.mark.parametrize(("back_end", "words"), [(BackEnd.TCP, "1 tcp)"), (BackEnd.CLEAR, "1 tcp clear)")])
def test_one_borrower_by_tcp_encrypts_its_pages_and_one_does_not(back_end: BackEnd, words: str) -> None:
    borrower, donor = Told(), Told()

    assert set_up(back_end, cast(Guest, borrower), cast(Guest, donor)) == 1

    (command,) = borrower.commands
    assert words in command


def test_only_the_back_ends_and_workloads_that_were_asked_for_are_measured() -> None:
    found = tasks(Results(), back_ends=(BackEnd.TCP,), workloads=(Workload.ETC,), events=False)

    assert found == [CellTask(back_end=BackEnd.TCP, workloads=(Workload.ETC,))]


# --- what is kept


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    upset = Upset(before=(window(10),), after=(window(5),), recalled_slabs=2)
    retreat = Retreat(
        workload=Workload.ETC,
        is_lending=True,
        date="now",
        store=window(3),
        moments=(Moment(now_s=1, cache_bytes=2, lent_bytes=3, free_bytes=4),),
    )
    made = replace(
        results(cell(Workload.SYS, BackEnd.RXE, 3, 2, 1)),
        upsets=Upsets(date="now", events={"silent": (upset,)}),
        retreats={retreat.key: retreat},
    )

    save(made, tmp_path / "new" / "apps.json")

    assert load(tmp_path / "new" / "apps.json") == made
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["apps.json"]


def test_where_there_is_no_file_nothing_was_measured(tmp_path: Path) -> None:
    assert load(tmp_path / "apps.json") == Results()


def test_a_file_of_something_else_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "apps.json").write_text('{"cells": 3}')

    with pytest.raises(ConfigError, match=r"apps\.json is not a file of results"):
        load(tmp_path / "apps.json")


# --- figures


def test_figures_are_medians_of_the_windows() -> None:
    found = summary([window(10, p99_us=1), window(90, p99_us=9), window(20, p99_us=3)])

    assert found is not None
    assert (found.per_s, found.p99_us, found.seconds) == (20, 3, 12)


def test_of_no_windows_there_is_no_figure() -> None:
    assert summary(()) is None


def test_a_level_is_compared_with_the_same_workload_where_all_of_it_fits() -> None:
    assert slower(cell(Workload.ETC, BackEnd.DISK, 100, 50, 10), 50) == 10
    assert slower(cell(Workload.ETC, BackEnd.DISK, 100, 50), 50) is None


def test_gains_are_ours_over_theirs() -> None:
    done = results(
        cell(Workload.ETC, BackEnd.DISK, 100, 50, 10, p99_us=80_000), cell(Workload.ETC, BackEnd.TCP, 100, 90, 60)
    )

    assert throughput_gain(done, Workload.ETC, BackEnd.TCP, BackEnd.DISK, 50) == 6
    assert p99_gain(done, Workload.ETC, BackEnd.TCP, BackEnd.DISK, 50) == pytest.approx(80 / 9)
    assert throughput_gain(done, Workload.ETC, BackEnd.TCP, BackEnd.NVME, 50) is None


def test_a_donors_time_is_told_above_what_it_takes_where_nothing_pages() -> None:
    idle, busy = summary([window(1, donor_busy_s=0.5)]), summary([window(1, donor_busy_s=2.0)] * 2)

    assert idle is not None
    assert busy is not None
    assert above_idle(busy, idle, lambda level: level.donor_busy_s) == pytest.approx(3.0)
    assert above_idle(idle, busy, lambda level: level.donor_busy_s) == 0
    assert above_idle(busy, idle, lambda level: level.donor_program_s) is None


def test_a_loss_is_what_is_missing_of_the_throughput_before() -> None:
    assert loss_pct(Upset(before=(window(100),) * 3, after=(window(40), window(80)))) == pytest.approx(40)


def test_an_evictions_loss_is_each_slabs() -> None:
    upset = Upset(before=(window(100),), after=(window(80),), recalled_slabs=4)

    assert event_loss_pct("evictions", (upset,)) == pytest.approx(5)
    assert event_loss_pct("evictions", (replace(upset, recalled_slabs=0),)) is None
    assert event_loss_pct("silent", ()) is None


# --- what kernels say


def test_a_machine_is_busy_with_all_but_idling_and_waiting() -> None:
    assert busy_s("cpu  100 10 200 9999 50 3 7 0 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n") == 3.2


def test_a_process_is_told_by_what_follows_its_name_whatever_that_is() -> None:
    assert process_s("42 (far) side) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 100 1000 10") == 3.0


def test_a_reading_has_pages_and_the_programs_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(counters, "PROC", tmp_path)
    (tmp_path / "42").mkdir()
    (tmp_path / "stat").write_text("cpu  100 0 0 0 0 0 0 0 0 0\n")
    (tmp_path / "vmstat").write_text("pgfault 9\npswpin 123\npswpout 456\n")
    (tmp_path / "42/stat").write_text("42 (x) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 100 1000 10")

    assert Reading(**counters.reading("42")) == Reading(busy_s=1, page_ins=123, page_outs=456, program_s=3)  # type: ignore[arg-type]
    assert counters.reading("43")["program_s"] is None
    assert counters.reading("")["program_s"] is None


def test_mapped_files_are_those_with_a_path() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 fe:00 12   /usr/lib/a b.so\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
        "7f04-7f05 rw-p 00000000 00:00 0    [heap]\n"
    )

    assert mapped_files(maps) == {Path("/usr/lib/a b.so")}


# --- the document


def test_a_document_of_nothing_says_so_everywhere() -> None:
    text = document(Results(), source="apps.json", curves=())

    rows = [line for line in text.splitlines() if line.startswith("| (")]
    assert rows
    assert all(MISSING in row for row in rows)
    assert "Nothing has been measured yet" in text


def test_what_could_not_be_measured_has_its_reason_in_the_document() -> None:
    broken = Cell(workload=Workload.ETC, back_end=BackEnd.NVME, date="", trouble="not set up: no such module")

    assert "not measured: not set up: no such module" in document(results(broken), source="apps.json", curves=())


def test_measured_cells_stand_beside_the_papers_figures() -> None:
    done = results(cell(Workload.SYS, BackEnd.DISK, 2000, 400, 100), cell(Workload.SYS, BackEnd.TCP, 2000, 1000, 800))

    rows = document(done, source="apps.json", curves=()).splitlines()

    assert any("| (a) disk | 2,000 | 400 | 100 | 5.00x, 20.0x | 17.4x |" in row for row in rows)
    assert any("8.00x" in row and row.rstrip().endswith("| 15.1x | 61.4x |") for row in rows)


def test_a_working_set_that_all_back_ends_have_is_one_figure() -> None:
    same = results(cell(Workload.SYS, BackEnd.DISK, 2000, 400, 100), cell(Workload.SYS, BackEnd.TCP, 2000, 1000, 800))

    assert re.search(r"^Working set \d+ MiB; requests", document(same, source="apps.json", curves=()), re.MULTILINE)


def test_the_document_is_made_of_the_results_and_the_remarks_and_nothing_else() -> None:
    before = (DOCS / "benchmarks-apps.md").read_text()
    curves = re.findall(r"^!\[.*\]\((.*)\)$", before, re.MULTILINE)

    made = document(load(RESULTS), source="benchmarks/results/apps.json", curves=curves, remarks=REMARKS.read_text())

    assert made == before


def test_every_workload_has_the_papers_figures() -> None:
    assert set(paper.SLOWER_AT_50) == set(Workload)


def test_the_plot_shows_what_the_donor_had() -> None:
    moments = tuple(Moment(now_s=n, cache_bytes=n * MIB, lent_bytes=8 * MIB, free_bytes=MIB) for n in range(3))

    plot = memory_plot(Workload.ETC, moments)

    assert [list(line.y) for line in plot.lines] == [[0, 1, 2], [8, 8, 8], [1, 1, 1]]
