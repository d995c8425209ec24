"""`farside trace report`, as its own command: the page, the JSON, the summary, and what it refuses."""

import html
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from farside.cli.trace import trace_app
from farside.errors import ConfigError
from tests.support.joblog import write_helios_log
from tests.support.trace_files import SAMPLES, write_file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace_app, ["report", *(str(argument) for argument in arguments)])


@pytest.fixture(scope="module")
def helios(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_helios_log(tmp_path_factory.mktemp("log") / "helios.csv", 4000, days=100, vcs=3, users=40)


def test_a_whole_log_gives_nine_figures_seven_verdicts_and_four_what_ifs(helios: Path, tmp_path: Path) -> None:
    page, told, nodes = tmp_path / "page.html", tmp_path / "told.json", tmp_path / "nodes.csv"
    nodes.write_text("vc,nodes\nvc0,8\nvc1,8\nvc2,8\n")

    done = run(helios, "--vc-nodes", nodes, "--output", page, "--json", told)

    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert re.findall(r"<h2>Figure (\d)", text) == [str(number) for number in range(1, 10)]
    assert text.count("<svg") == 9
    assert "Left out." not in text
    found = json.loads(told.read_text())
    assert found["lacks"] == []
    assert [one["number"] for one in found["implications"]] == list(range(1, 8))
    assert [one["implication"] for one in found["what_ifs"]] == [3, 5, 6, 7]
    assert f"{page}: written" in done.stdout


@pytest.mark.long
def test_a_page_needs_nothing_else(helios: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(helios, "-o", page, "--what-if-jobs", "0")

    text = page.read_text()

    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert "http" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


# Those of the others are long: each page takes seconds.
USUAL = ("helios", "openb")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in SAMPLES]
)
def test_a_log_of_any_format_has_a_page(name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    done = run(write_file(tmp_path, SAMPLES[name], packed=True), "--nodes", "4", "-o", page)

    assert done.exit_code == 0, done.output
    assert page.read_text().count("<h2>Figure") == 9


def test_what_a_log_lacks_is_left_out_by_name(tmp_path: Path) -> None:
    log, page, told = tmp_path / "philly.csv", tmp_path / "page.html", tmp_path / "told.json"
    log.write_text("submit_time,duration,gpus,vc\n2017-10-01 00:00:00,100,2,a\n2017-10-02 00:00:00,50,1,b\n")

    done = run(log, "-o", page, "--json", told)

    assert "The log lacks CPU jobs, final statuses, start times, the cluster's size, users" in done.stdout
    text = page.read_text()
    assert re.search(r"Figure 7[^<]*</h2>\s*<p[^>]*>Left out. The log lacks final statuses", text)
    assert re.search(r"Figure 8[^<]*</h2>\s*<p[^>]*>Left out. The log lacks users", text)
    found = json.loads(told.read_text())
    assert [one["implication"] for one in found["omitted"]] == [3, 5, 6, 7]
    assert "nan" not in told.read_text().lower()


def test_starts_that_a_log_lacks_are_replayed_where_the_cluster_is_known(tmp_path: Path) -> None:
    log, nodes, page = tmp_path / "philly.csv", tmp_path / "nodes.csv", tmp_path / "page.html"
    log.write_text("submit_time,duration,gpus,vc\n2017-10-01 00:00:00,100,8,a\n2017-10-01 00:00:01,50,8,a\n")
    nodes.write_text("vc,nodes\na,1\nb,2\n")

    done = run(log, "--vc-nodes", nodes, "-o", page)

    assert "Start times are the simulator's" in done.stdout
    assert "what if (3)" in done.stdout


def test_names_in_a_log_are_text_and_not_html(tmp_path: Path) -> None:
    log, page = tmp_path / "log.csv", tmp_path / "page.html"
    log.write_text(
        "job_id,user,vc,gpu_num,state,submit_time,start_time,duration\n"
        "1,u,<b>x</b>,1,FAILED,2020-04-01 09:00:00,2020-04-01 09:00:00,60\n"
        "2,u,<i>y,1,FAILED,2020-04-01 09:00:00,2020-04-01 09:00:00,60\n"
    )

    assert run(log, "-o", page).exit_code == 0

    assert "<b>x" not in page.read_text()
    assert "<i>y" not in page.read_text()


@pytest.mark.long
def test_jobs_of_unknown_virtual_clusters_count_but_use_nothing(helios: Path, tmp_path: Path) -> None:
    nodes, page = tmp_path / "nodes.csv", tmp_path / "page.html"
    nodes.write_text("vc,nodes\nvc0,8\n")

    done = run(helios, "--vc-nodes", nodes, "-o", page, "--what-if-jobs", "0")

    assert "Nobody says how many nodes vc1, vc2 have" in done.stdout.replace("vc2, vc1", "vc1, vc2")


@pytest.mark.long
def test_statuses_that_nobody_knows_are_told_and_give_no_verdict(tmp_path: Path) -> None:
    log, page, told = tmp_path / "log.csv", tmp_path / "page.html", tmp_path / "told.json"
    log.write_text(
        "job_id,user,vc,gpu_num,state,submit_time,start_time,duration\n"
        "0,u,a,1,FAILED,2020-04-01 09:00:00,2020-04-01 09:00:00,60\n"
        + "".join(f"{at},u,a,1,ODD,2020-04-01 09:00:00,2020-04-01 09:00:00,60\n" for at in range(1, 100))
    )

    done = run(log, "-o", page, "--json", told)

    assert "99 rows end with a status that is not known here: 'ODD'." in done.stdout
    assert "Final statuses are known of 1.0% of GPU jobs and 1.0% of their GPU time" in done.stdout
    assert "5. cannot tell" in done.stdout
    assert "'ODD'" in html.unescape(page.read_text())
    found = json.loads(told.read_text())
    assert found["known_statuses"] == {"gpu_jobs": 0.01, "gpu_time": 0.01}
    assert 5 in [one["implication"] for one in found["omitted"]]


def test_a_clock_that_jumped_by_decades_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("job_id,submit_time,gpus,duration_s\na,2020-01-01 00:00:00,1,60\nb,1970-01-01 00:00:09,1,60\n")

    done = run(log, "-o", tmp_path / "page.html")

    assert isinstance(done.exception, ConfigError)
    assert "a clock was wrong" in str(done.exception)


def test_mistakes_are_told_before_the_work(tmp_path: Path) -> None:
    log, nodes = tmp_path / "log.csv", tmp_path / "nodes.csv"
    log.write_text("job_id,submit_s,gpus,duration_s\na,0,0,100\n")
    nodes.write_text("vc,nodes\na,1\n")

    for arguments, reason in (
        (("-o", tmp_path / "none" / "page.html"), "No such file"),
        (("-o", tmp_path / "page.html"), "no job has a GPU"),
        (("-o", tmp_path / "page.html", "--format", "helius"), "did you mean 'helios'"),
    ):
        done = run(log, *arguments)
        assert isinstance(done.exception, ConfigError)
        assert reason in str(done.exception)
    assert not (tmp_path / "page.html").exists()
