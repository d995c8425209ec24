"""What a wrong trace is told: where, what, and what to do."""

import gzip
from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.scheduler.sim.trace.read import AUTO, read_trace
from farside.scheduler.sim.trace.row_problems import TOLD
from tests.support.trace_files import FARSIDE, PHILLY_CSV, PHILLY_JSON, SAMPLES, SLURM, write_file

HEADER = "job_id,submit_s,gpus,duration_s"


def refusal(folder: Path, text: str | bytes, *, fmt: str = "auto", packed: bool = False) -> str:
    with pytest.raises(ConfigError) as raised:
        read_trace(write_file(folder, text, packed=packed), fmt=fmt, on_bad="refuse")
    return str(raised.value).replace(str(folder), "")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("a,0,four,1", "column gpus: 'four' is not a number; give a number from 1 to 1000000"),
        ("a,0,0,1", "column gpus: '0' is out of range; give a number from 1 to 1000000"),
        ("a,0,1.5,1", "column gpus: '1.5' is not a whole number; give one from 1 to 1000000"),
        ("a,0,-1,1", "column gpus: '-1' is out of range; give a number from 1 to 1000000"),
        ("a,0,1,nan", "column duration_s: 'nan' is not a number; give a number from 0 to 3153600000"),
        ("a,0,1,inf", "column duration_s: 'inf' is not a number; give a number from 0 to 3153600000"),
        ("a,0,1,-5", "column duration_s: '-5' is out of range; give a number from 0 to 3153600000"),
        ("a,0,1,1e300", "column duration_s: '1e300' is out of range; give a number from 0 to 3153600000"),
        ("a,0,1,", "column duration_s: '' is not a number; give a number from 0 to 3153600000"),
        ("a,soon,1,1", "column submit_s: 'soon' is not a time; give YYYY-MM-DD HH:MM:SS, or seconds"),
        ("a,1969-01-01 00:00:00,1,1", "column submit_s: '1969-01-01 00:00:00' is before 1970; give a later date"),
        ("a,2024-02-30 00:00:00,1,1", "column submit_s: '2024-02-30 00:00:00' is not a date; give YYYY-MM-DD HH:MM:SS"),
        (",0,1,1", "column job_id: is empty; give every job an id of its own"),
        ("a\x01b,0,1,1", "column job_id: 'a\\x01b' has a control character; take it out"),
        ("a,0,1", ": 3 cells, the header has 4; put cells with commas into double quotes, or fix the row"),
        ('"a,0,1,1', "quotes are not as in CSV (unexpected end of data); double each quote inside a quoted cell"),
    ],
)
def test_a_bad_cell_is_told_with_its_line_and_column(row: str, told: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, f"{HEADER}\nz,0,1,1\n{row}\n")

    assert message.startswith("/trace, line 3")
    assert told in message
    assert message.endswith("or leave it out with --on-bad skip")
    assert "\n" not in message


def test_two_jobs_with_one_id_are_told_with_both_lines(tmp_path: Path) -> None:
    assert "line 4, column job_id: 'a' is on line 2 already" in refusal(
        tmp_path, f"{HEADER}\na,0,1,1\nb,0,1,1\na,5,1,1\n"
    )


def test_ids_that_stand_on_one_line_are_told_apart(tmp_path: Path) -> None:
    text = (
        PHILLY_JSON.replace("\n", "").replace("application_3", "application_1").replace("null", '"2017-10-08 00:00:00"')
    )

    assert "column jobid: 'application_1' is on line 1 already" in refusal(tmp_path, text)


def test_bytes_that_are_not_utf_8_spoil_their_row_alone(tmp_path: Path) -> None:
    text = b"job_id,submit_s,gpus,duration_s,user\na,0,1,1,J\xf6rg\nb,0,1,1,Ann\n"

    assert "line 2, column user" in refusal(tmp_path, text)
    assert "is not UTF-8" in refusal(tmp_path, text)
    assert len(read_trace(write_file(tmp_path, text), on_bad="skip").jobs) == 1


def test_dates_and_seconds_do_not_mix(tmp_path: Path) -> None:
    message = refusal(tmp_path, PHILLY_CSV + "77,1,1,aa,1\n")

    assert "line 4, column submit_time: '77' is a number of seconds, unlike the rows above" in message


def test_all_bad_rows_are_told_up_to_a_number(tmp_path: Path) -> None:
    rows = [f"{at},0,x,1" for at in range(30)]

    message = refusal(tmp_path, "\n".join([HEADER, "ok,0,1,1", *rows]))

    lines = message.splitlines()
    assert len(lines) == TOLD + 2
    assert lines[-2] == "/trace: and 10 more"
    assert lines[-1] == "/trace: 30 rows cannot be used; fix them, or leave them out with --on-bad skip"


def test_bad_rows_are_skipped_and_counted_where_the_operator_says_so(tmp_path: Path) -> None:
    path = write_file(tmp_path, f"{HEADER}\na,0,1,1\nb,0,x,1\nc,0,1\nd,0,1,1\n")

    trace = read_trace(path, on_bad="skip")

    assert [entry.job.job_id for entry in trace.jobs] == ["a", "d"]
    assert trace.skipped == 2
    assert [problem.split(": ")[0] for problem in trace.problems] == [f"{path}, line 3, column gpus", f"{path}, line 4"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "/trace: is empty; name another file"),
        ("\n \n", "/trace: is empty; name another file"),
        (HEADER, "/trace: holds no job; name a file with at least one"),
        ("[]", "/trace: holds no job; name a file with at least one"),
        ("a,b,c\n1,2,3\n", "no format has these columns"),
        ("submit_time,duration,vc\n", "philly-csv lacks gpus; philly-csv begins with a line such as"),
        ("job_id,job_id,gpus,duration_s,submit_s\n", "line 1: two columns are called 'job_id'; rename one"),
        ("JobID|Submit|Elapsed\n", "no column has the number of GPUs; add AllocTRES to sacct's --format"),
        ("JobID|Submit|AllocTRES\n", "no column has the jobs' run times; add Elapsed to sacct's --format"),
        ("[{", "line 1: is not JSON: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "the list does not end; copy the file again"),
        ('[{"a": ' + "[" * 100_000, "line 1: lists within lists"),
        (
            '[{"a": ' + "9" * 5000 + "}]",
            "line 1: a number of thousands of digits; no job has such; is the file damaged?",
        ),
        ("[[1]]", "line 1: '1' is no JSON object; give what Philly's cluster_job_log has there"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, text)

    assert told in message
    assert "\n" not in message


def test_a_list_that_breaks_off_is_refused(tmp_path: Path) -> None:
    assert "does not end; copy the file again" in refusal(tmp_path, PHILLY_JSON.rstrip().removesuffix("]"))


@pytest.mark.parametrize("on_bad", ["refuse", "skip"])
@pytest.mark.parametrize("kept", [5, 20, 60])
def test_gzip_that_breaks_off_is_refused_whatever_becomes_of_bad_rows(kept: int, on_bad: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(FARSIDE.encode())[:kept])

    with pytest.raises(ConfigError, match=r"is not whole|not a gzip|is empty"):
        read_trace(path, on_bad="skip" if on_bad == "skip" else "refuse")


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    assert "line 2: longer than" in refusal(tmp_path, HEADER + "\n" + "a" * (1 << 21))


@pytest.mark.parametrize("before", ["", HEADER + "\n", HEADER + "\n1,0,1,5,a\n"])
def test_blank_lines_without_end_are_refused(before: str, tmp_path: Path) -> None:
    few, many = "\n" * (1 << 16), "\n \n" * (1 << 19)

    assert "blank lines; is this a table of jobs?" in refusal(tmp_path, before + many)
    assert "blank lines" not in refusal(tmp_path, HEADER + "\n" + few + "no job\n" + few)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; name a file that can be read"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_trace(tmp_path)


def test_a_format_that_does_not_fit_says_which_column_it_lacks(tmp_path: Path) -> None:
    message = refusal(tmp_path, SAMPLES["tiresias"], fmt="philly-csv")

    assert "line 1: as philly-csv it lacks the column gpus; did you mean 'num_gpu'?" in message


def test_an_unknown_format_is_told_with_the_nearest(tmp_path: Path) -> None:
    assert "no format of traces 'slrm'; did you mean 'slurm'?" in refusal(tmp_path, SLURM, fmt="slrm")


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("99:00:00:00", "column elapsed: '99:00:00:00' is not a duration"),
        ("x", "column elapsed: 'x' is not a duration; give [DAYS-]HH:MM:SS as sacct prints it"),
        ("999999-00:00:00", "column elapsed: '999999-00:00:00' is longer than a century"),
    ],
)
def test_a_duration_that_slurm_does_not_print_is_told(cell: str, told: str, tmp_path: Path) -> None:
    text = f"JobID|Submit|Elapsed|AllocTRES\n7|2024-03-01T10:01:00|{cell}|gres/gpu=1\n"

    assert told in refusal(tmp_path, text)


def test_an_end_before_its_start_is_told(tmp_path: Path) -> None:
    text = SAMPLES["openb"].replace("427071", "12902961")

    assert "line 3, column deletion_time: '12902960' is before scheduled_time" in refusal(tmp_path, text)


def test_a_header_without_an_id_gets_an_example(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,duration_s,gpus\n")

    with pytest.raises(ConfigError, match="farside lacks job_id; farside begins with a line such as 'job_id,"):
        read_trace(path)


@pytest.mark.parametrize("fmt", [AUTO, None])
def test_only_where_a_format_can_be_named_the_option_is_told(fmt: str | None, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("a,b,c\n")

    with pytest.raises(ConfigError) as refused:
        read_trace(path, fmt=fmt)

    assert ("or say --format, one of farside, " in str(refused.value)) == (fmt == AUTO)
