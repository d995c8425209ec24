"""`farside sim run`, `compare` and `why` as a user runs them: processes, files, exit codes."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet
import pytest

from farside.cli import sim as sim_options
from farside.scheduler.order.catalog import ORDERS
from farside.scheduler.placement.catalog import PLACEMENTS
from tests.support.traces import CLUSTER_DATA

# Two virtual clusters; job 3 of b is the last.
TRACE = """\
job_id,submit_s,gpus,duration_s,vc
1,0,4,100,a
2,10,4,50,a
3,20,2,30,b
4,30,2,10,a
"""
NEEDED = ("job_id", "vc", "submit_s", "gpus", "duration_s", "start_s", "end_s", "queue_s", "preemptions")
FIGURES = ("avg_jct_s", "avg_queue_s", "median_jct_s", "p95_jct_s", "preemptions", "makespan_s")


def sim(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farside", "sim", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_run_gives_what_a_hand_gives(jobs: Path, tmp_path: Path) -> None:
    table, figures = tmp_path / "out.csv", tmp_path / "out.json"

    done = sim(
        "run", jobs, "--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4, "--jobs-out", table, "--json", figures
    )

    assert (done.returncode, done.stderr) == (0, "")
    rows = rows_of(table)
    assert tuple(rows[0])[: len(NEEDED)] == NEEDED
    assert [tuple(row[name] for name in NEEDED) for row in rows] == [
        ("1", "a", "0", "4", "100", "0", "100", "0", "0"),
        ("2", "a", "10", "4", "50", "100", "150", "90", "0"),
        ("3", "b", "20", "2", "30", "150", "180", "130", "0"),
        ("4", "a", "30", "2", "10", "150", "160", "120", "0"),
    ]
    found = json.loads(figures.read_text())
    assert [found["all"][name] for name in FIGURES] == [132.5, 85.0, 135.0, pytest.approx(157.0), 0, 180.0]
    assert [found["by_vc"]["b"][name] for name in FIGURES] == [160.0, 130.0, 160.0, 160.0, 0, 160.0]
    assert found["by_vc"]["a"]["jobs"] == 3
    assert found["utilisation"] == pytest.approx((400 + 200 + 60 + 20) / (180 * 4))
    assert "avg JCT s" in done.stdout
    assert "132" in done.stdout


def test_virtual_clusters_run_on_nodes_of_their_own(jobs: Path, tmp_path: Path) -> None:
    nodes, figures = tmp_path / "nodes.csv", tmp_path / "out.json"
    nodes.write_text("vc,nodes\na,1\nb,1\nunused,5\n")

    done = sim("run", jobs, "--policy", "fifo", "--vc-nodes", nodes, "--gpus-per-node", 4, "--json", figures)

    assert done.returncode == 0
    found = json.loads(figures.read_text())
    assert found["by_vc"]["b"]["avg_queue_s"] == 0.0
    assert found["gpus"] == 8


def test_a_virtual_cluster_grows_on_the_day_that_the_file_says(tmp_path: Path) -> None:
    trace, sizes, table = tmp_path / "jobs.csv", tmp_path / "gpus.csv", tmp_path / "out.csv"
    figures = tmp_path / "out.json"
    trace.write_text(
        "job_id,submit_time,gpus,duration_s,vc\n1,2020-05-01 22:00:00,8,60,a\n2,2020-05-02 01:00:00,4,60,a\n"
    )
    sizes.write_text("date,a,total\n2020-05-01,4,4\n2020-05-02,8,8\n2020-05-03,0,0\n")

    done = sim(
        "run", trace, "--policy", "best-effort", "--vc-nodes", sizes, "--gpus-per-node", 4,
        "--jobs-out", table, "--json", figures,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "virtual cluster a: 1 node, 4 GPUs when the first job comes; 4 to 8 GPUs until the last\n" in done.stdout
    found = json.loads(figures.read_text())
    assert (found["gpus"], found["least_gpus"], found["most_gpus"]) == (4, 4, 8)
    first, second = rows_of(table)
    assert float(first["queue_s"]) == 2 * 3600  # from ten in the evening to the midnight that brings the second node
    assert float(second["queue_s"]) == 0


@pytest.mark.long
def test_a_wish_for_a_gpu_model_is_kept_or_passed_over_as_the_operator_says(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s,gpu_model\n1,0,1,60,V100M16|V100M32\n2,0,1,60,\n")
    run = ("run", trace, "--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4)

    unsaid, wrong, right, whichever = (sim(*run, *("--gpu-model", name)[:count]) for name, count in (
        ("", 0), ("T4", 2), ("v100m32", 2), ("any", 2),
    ))  # fmt: skip

    assert "job 1: asks for GPUs of model V100M16|V100M32, and the GPU models are unknown" in unsaid.stderr
    assert "1 GPU of model V100M16|V100M32" in wrong.stderr
    assert [one.returncode for one in (unsaid, wrong, right, whichever)] == [2, 2, 0, 0]


@pytest.mark.long
def test_cpus_memory_and_racks_count_where_they_are_said(tmp_path: Path) -> None:
    trace, table = tmp_path / "jobs.csv", tmp_path / "out.csv"
    head = "job_id,submit_s,gpus,duration_s,cpus_per_gpu,memory_bytes_per_gpu\n"
    trace.write_text(head + "1,0,1,100,6,4294967296\n2,0,1,100,6,4294967296\n3,0,8,10,0,0\n")
    run = ("run", trace, "--policy", "fifo", "--gpus-per-node", 4, "--jobs-out", table)

    starts = []
    for options in ((), ("--cpus-per-node", 8), ("--memory-per-node", "6GiB"), ("--cpus-per-node", 12)):
        assert sim(*run, "--nodes", 1, "--bad", "skip", *options).returncode == 0
        starts.append([row["start_s"] for row in rows_of(table)])
    little = sim(*run, "--nodes", 2, "--cpus-per-node", 4.5)
    racked = sim(*run, "--nodes", 2, "--placement", "yarn", "--nodes-per-rack", 1)

    assert starts == [["0", "0"], ["0", "100"], ["0", "100"], ["0", "0"]]
    assert "job 1: no set of its cluster's nodes can hold it (1 GPU with 6 CPUs each with 4 GiB each" in little.stderr
    assert "job 3: no set of its cluster's nodes can hold it (8 GPUs" in racked.stderr


def test_one_virtual_cluster_and_a_window(jobs: Path, tmp_path: Path) -> None:
    table = tmp_path / "out.csv"

    done = sim(
        "run", jobs, "--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4,
        "--vc", "a", "--from", 10, "--to", 30, "--jobs-out", table,
    )  # fmt: skip

    assert done.returncode == 0
    assert [(row["job_id"], row["start_s"]) for row in rows_of(table)] == [("2", "10"), ("4", "60")]


def test_several_values_may_follow_one_option(jobs: Path, tmp_path: Path) -> None:
    nodes, figures = tmp_path / "nodes.csv", tmp_path / "out.json"
    nodes.write_text("vc,nodes\na,1\nb,1\n")

    done = sim(
        "run", jobs, "--vc-nodes", nodes, "--gpus-per-node", 4, "--vc", "a", "b",
        "--set", "min_run_s=5", "cost=helios", "--policy", "srtf", "--json", figures,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert set(found["by_vc"]) == {"a", "b"}
    assert (found["settings"]["options"]["min_run_s"], found["settings"]["cost"]["name"]) == (5.0, "helios")


def test_a_table_of_jobs_as_parquet(jobs: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"

    assert sim("run", jobs, "--policy", "srtf", "--nodes", 1, "--gpus-per-node", 4, "--jobs-out", path).returncode == 0

    table = pyarrow.parquet.read_table(path)
    assert tuple(table.column_names)[: len(NEEDED)] == NEEDED
    assert table.column("end_s").to_pylist() == [180.0, 90.0, 50.0, 40.0]
    assert table.column("preemptions").to_pylist() == [1, 1, 0, 0]


@pytest.mark.long
def test_a_table_of_jobs_is_a_trace_again(jobs: Path, tmp_path: Path) -> None:
    table = tmp_path / "out.csv"
    common = ("--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4, "--jobs-out")
    sim("run", jobs, *common, table)

    done = sim("run", table, *common, tmp_path / "again.csv")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.csv").read_text() == table.read_text()


def test_compare_marks_the_best_and_writes_all(jobs: Path, tmp_path: Path) -> None:
    figures, report = tmp_path / "out.json", tmp_path / "out.html"

    done = sim(
        "compare", jobs, "--policy", "fifo,srtf,las", "--nodes", 1, "--gpus-per-node", 4,
        "--json", figures, "--report", report,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if "│" in line}
    assert re.search(r"│ srtf +│ +75 \*", lines["srtf"])
    assert re.search(r"│ fifo +│ +132 +│", lines["fifo"])
    found = json.loads(figures.read_text())
    assert list(found["policies"]) == ["fifo", "srtf", "las"]
    assert found["policies"]["srtf"]["all"]["avg_jct_s"] == 75.0
    check_page(report.read_text(), policies=("fifo", "srtf", "las"))


def test_a_report_of_one_run(jobs: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.html"

    assert sim("run", jobs, "--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4, "--report", report).returncode == 0

    check_page(report.read_text(), policies=("fifo",))


@pytest.mark.long
def test_a_report_where_all_time_is_one_instant(jobs: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    for submitted in ("submit_s,gpus,duration_s\na,0", "submit_time,gpus,duration_s\na,2024-01-01 00:00:00"):
        jobs.write_text(f"job_id,{submitted},1,0\n")

        done = sim("run", jobs, "--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4, "--report", report)

        assert (done.returncode, done.stderr) == (0, "")
        assert "Utilisation" in report.read_text()


def test_help_names_every_policy_and_placement() -> None:
    assert ", ".join(ORDERS) == sim_options.POLICIES
    assert ", ".join(PLACEMENTS) == sim_options.PLACEMENTS


class Page(HTMLParser):
    """Collects what a page holds, and that its elements are closed in order."""

    EMPTY = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "action", "data"):
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_page(text: str, policies: tuple[str, ...]) -> None:
    page = Page()
    page.feed(text)
    page.close()

    assert page.open == []
    assert "script" not in page.tags
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert not re.search(r"https?:|url\((?!#)|@import", text)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert page.tags.count("svg") == 4 + len(policies)  # distribution, utilisation, queue, fragments; nodes of each
    words = " ".join(page.text)
    for expected in (*policies, "Completion times", "Utilisation", "Queue", "Nodes over time", "avg JCT s", "SS"):
        assert expected in words


def test_names_in_a_trace_are_text_in_a_report(tmp_path: Path) -> None:
    trace, report = tmp_path / "jobs.csv", tmp_path / "out.html"
    trace.write_text("job_id,submit_s,gpus,duration_s,vc\n1,0,1,5,<b>&\n2,0,1,5,c\n")

    assert sim("run", trace, "--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4, "--report", report).returncode == 0

    assert "<b>" not in report.read_text()
    assert "&lt;b&gt;&amp;" in report.read_text()


def test_why_tells_the_decisions(jobs: Path) -> None:
    common = ("--policy", "fifo", "--nodes", 1, "--gpus-per-node", 4)

    done, swapped = sim("why", jobs, "3", *common), sim("why", "3", jobs, *common)

    assert done.returncode == 0
    assert done.stdout == swapped.stdout
    assert done.stdout.splitlines() == [
        "job 3: 2 GPUs, came 20 s, ended 180 s; ran 30 s, waited 2.17 min",
        "  20 s  waits 1.33 min: needs 2 GPUs on one node, 0 free; the first in line is job 2 (4 GPUs), "
        "which came 10 s earlier",
        "  100 s  waits 50 s: needs 2 GPUs on one node, 0 free; one running job there, and fifo preempts no job",
        "  150 s  starts on n0 (2): 2 GPUs free",
        "  180 s  ended",
        "  in all 1.33 min: behind the first in line",
        "  in all 50 s: too few GPUs free",
    ]


@pytest.mark.long
def test_why_a_job_never_starts_in_what_its_virtual_cluster_shrank_to(tmp_path: Path) -> None:
    trace, sizes = tmp_path / "jobs.csv", tmp_path / "sizes.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s,vc\na,0,4,100,x\nb,10,8,50,x\nc,20,1,50,x\n")
    sizes.write_text("vc,nodes,from\nx,2,0\nx,1,50\n")
    common = ("--policy", "fifo", "--vc-nodes", sizes, "--gpus-per-node", 4)

    done, behind, ran = (sim("why", trace, job, *common) for job in "bca")

    assert (done.returncode, behind.returncode, ran.returncode) == (1, 1, 0)
    assert done.stdout.splitlines() == [
        "job b: 8 GPUs, came 10 s, never ended",
        "  10 s  waits 1.5 min: needs 8 GPUs on 2 nodes, 0 to 4 free; one running job there, and fifo preempts no job",
        "  100 s  waits for ever: needs 8 GPUs on 2 nodes, 4 free; its virtual cluster has 4 in all from then on",
        "  in all 1.5 min: too few GPUs free",
    ]
    assert "100 s  waits for ever: needs 1 GPU, 4 free; the first in line is job b" in behind.stdout
    assert "nan" not in done.stdout + behind.stdout


ONE = ("--nodes", 1, "--gpus-per-node", 4)
FIFO = ("--policy", "fifo")
# Each row starts a process; only the first of each kind is in `make test`.
MISTAKES = [
    (("run", "{}", "--policy", "las2", *ONE), "no policy 'las2'; did you mean 'las'?"),
    (("run", "{}", *FIFO, *ONE, "--set", "min_runs=3"), "did you mean 'min_run_s'?"),
    (("run", "{}", *FIFO, *ONE, "--from", "yesterday"), "--from: 'yesterday' is not a time"),
    (("run", "{}", *FIFO, *ONE, "--json", "/nowhere/out.json"), "/nowhere/out.json: No such file or directory"),
    (("run", "{}.gone", *FIFO, *ONE), "No such file or directory"),
    (("run", "{}", *FIFO, "--nodes", 1, "--gpus-per-node", 3), "2 of 4 jobs can never run on this cluster"),
    (("why", "{}", "9", *FIFO, *ONE), "no job '9' among the 4"),
    (("compare", "{}", "--policy", "fifo,srtff", *ONE), "no policy 'srtff'; did you mean 'srtf'?"),
    (("compare", "{}", "--policy", ",", *ONE), "--policy names no policy"),
    (("run", "{}", *FIFO, *ONE, "--set", "min_run_s"), "is not KEY=VALUE"),
    (("run", "{}", *FIFO, *ONE, "--set", "tick_s=never"), "options: tick_s: must be finite"),
    (("run", "{}", *FIFO, *ONE, "--placement", "cont"), "did you mean 'count'?"),
    (("run", "{}", *FIFO, *ONE, "--vc", "c"), "no job of virtual cluster 'c'; its virtual clusters: a, b"),
    (("run", "{}", *FIFO, *ONE, "--from", "500"), "no job is left of 4; they were submitted from 0 s to 30 s"),
    (("run", "{}", *FIFO, *ONE, "--from", "2017-10-01"), "counts seconds and has no dates"),
    (("run", "{}", *FIFO, "--gpus-per-node", 4), "the number of nodes of the cluster is unknown"),
    (("run", "{}", *FIFO, *ONE, "--jobs-out", "out.xls"), "cannot write files of type '.xls'"),
    (("why", "{}", "9", "--policy", "lass", *ONE), "did you mean 'las'?"),
]
KINDS = 7


@pytest.mark.parametrize(
    ("arguments", "told"), MISTAKES[:KINDS] + [pytest.param(*row, marks=pytest.mark.long) for row in MISTAKES[KINDS:]]
)
def test_a_mistake_is_told_at_once_with_exit_code_2(jobs: Path, arguments: tuple[object, ...], told: str) -> None:
    done = sim(*(str(argument).replace("{}", str(jobs)) for argument in arguments))

    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_larger_than_its_cluster_is_refused_with_file_line_and_reason(jobs: Path) -> None:
    jobs.write_text(TRACE + "5,40,5,10,a\n")

    done = sim("run", jobs, *FIFO, *ONE)

    assert done.returncode == 2
    assert done.stderr == (
        f"farside: {jobs}, line 6: job 5: needs 5 GPUs, its cluster has 4; "
        "give the cluster more, or leave such jobs out with --on-bad skip\n"
    )


def test_bad_rows_and_jobs_too_large_are_skipped_and_counted(jobs: Path, tmp_path: Path) -> None:
    jobs.write_text(TRACE + "5,40,5,10,a\n6,50,two,10,a\n")
    figures = tmp_path / "out.json"

    done = sim("run", jobs, *FIFO, *ONE, "--bad", "skip", "--json", figures)

    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert any("line 7, column gpus" in line for line in lines)
    assert any("line 6: job 5: needs 5 GPUs" in line for line in lines)
    assert lines[-1] == "farside: 2 rows were skipped; the figures are those of the other jobs"
    found = json.loads(figures.read_text())
    assert (found["jobs"], found["left_out"]) == (4, 2)


def test_a_file_that_cannot_be_written_is_found_before_the_trace_is_read(tmp_path: Path) -> None:
    done = sim("run", tmp_path / "none.csv", *FIFO, *ONE, "--report", tmp_path / "no" / "out.html")

    assert done.returncode == 2
    assert "out.html" in done.stderr


def test_looking_for_a_place_leaves_no_file(jobs: Path, tmp_path: Path) -> None:
    sim("run", jobs, "--policy", "none", *ONE, "--json", tmp_path / "out.json")

    assert not (tmp_path / "out.json").exists()


@pytest.mark.long
def test_free_preemptions_are_mentioned(jobs: Path) -> None:
    assert "cost nothing under srtf" in sim("run", jobs, "--policy", "srtf", *ONE).stderr
    assert sim("run", jobs, "--policy", "srtf", *ONE, "--set", "cost=helios").stderr == ""


@pytest.mark.long
def test_a_star_is_explained_where_there_is_one(jobs: Path) -> None:
    alike, different = (sim("compare", jobs, "--policy", names, *ONE) for names in ("fifo", "fifo,srtf"))

    assert "the best of its kind" not in alike.stdout
    assert "the best of its kind" in different.stdout


def test_a_window_in_seconds_says_nothing_of_a_trace_with_dates(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_time,gpus,duration_s\n1,2024-01-01 08:00:00,1,60\n")

    done = sim("run", trace, *FIFO, *ONE, "--from", "1000")

    assert done.returncode == 2
    assert done.stderr == "farside: --from 1000: the trace has dates; give YYYY-MM-DD HH:MM:SS\n"


@pytest.fixture
def stopped() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.long
def test_an_interrupted_comparison_ends_with_its_children(
    tmp_path: Path, stopped: list[subprocess.Popen[bytes]]
) -> None:
    trace = tmp_path / "jobs.csv"
    rows = (f"{at},{at},1,100000\n" for at in range(60_000))
    trace.write_text("job_id,submit_s,gpus,duration_s\n" + "".join(rows))
    command = [sys.executable, "-m", "farside", "sim", "compare", str(trace), "--policy", "fifo,las"]
    process = subprocess.Popen(
        [*command, "--nodes", "10", "--gpus-per-node", "8"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # CI may have it ignored
    )
    stopped.append(process)
    deadline_s = time.monotonic() + 60
    while not children_of(process.pid) and process.poll() is None and time.monotonic() < deadline_s:
        os.sched_yield()
    children = children_of(process.pid)

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert said == b""
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fifo", "sjf", "srtf"])
def test_helioss_settings_give_helioss_figures(policy: str, tmp_path: Path) -> None:
    if not (CLUSTER_DATA / "expected.json").exists():
        pytest.skip("no real traces on this machine")
    expected, figures = json.loads((CLUSTER_DATA / "expected.json").read_text()), tmp_path / "out.json"
    first, last = expected["window"]

    done = sim(
        "run", CLUSTER_DATA / "jobs" / "philly_dev.csv.gz", "--policy", policy, "--set", "cost=helios",
        "--set", "remainder_on_fullest=true", "--vc-nodes", CLUSTER_DATA / "jobs" / "philly_vc_nodes.csv",
        "--gpus-per-node", 8, "--vc", "2869ce", "--vc", "7f04ca", "--from", first, "--to", last, "--json", figures,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())["by_vc"]
    for vc, published in expected["vc"].items():
        assert [found[vc]["avg_jct_s"], found[vc]["avg_queue_s"]] == pytest.approx(published[policy], abs=2)
