"""Files that `farside sim` writes: whole or untouched, and never where something else is needed."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from farside.errors import ConfigError, FarsideError
from farside.scheduler.sim.output_files import check_apart, check_writable, is_stream, written

TRACE = "job_id,submit_s,gpus,duration_s,vc\n1,0,4,100,a\n2,10,4,50,a\n"
COMMON = ("--policy", "fifo", "--nodes", "1", "--gpus-per-node", "4")


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return path


def sim(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farside", "sim", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_result_never_takes_the_place_of_the_trace(jobs: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(jobs)

    for name in (jobs, tmp_path / "." / "jobs.csv", link):
        done = sim("run", jobs, *COMMON, "--jobs-out", name)

        assert done.returncode == 2
        assert done.stderr == f"farside: --jobs-out {name}: is the file of the trace as well; name another file\n"
        assert jobs.read_text() == TRACE


def test_no_input_and_no_other_result_is_written_over(tmp_path: Path) -> None:
    same, other = tmp_path / "same.csv", tmp_path / "other.csv"

    with pytest.raises(ConfigError, match=r"--json .*same.csv: is the file of --jobs-out as well"):
        check_apart({"--jobs-out": same, "--json": same, "--report": None}, {"the trace": other})
    with pytest.raises(ConfigError, match=r"--report .*other.csv: is the file of --vc-nodes as well"):
        check_apart({"--jobs-out": same, "--report": other}, {"--vc-nodes": other, "--history": None})
    check_apart({"--jobs-out": Path("/dev/null"), "--json": Path("/dev/null")}, {})


def fill_the_disk(path: Path) -> None:
    with written(path) as place:
        place.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")

    with pytest.raises(FarsideError, match="No space left on device; it was left as it was"):
        fill_the_disk(path)

    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_result_keeps_the_mode_of_the_file_and_the_link_that_names_it(tmp_path: Path) -> None:
    path, link = tmp_path / "out.json", tmp_path / "link"
    path.write_text("before")
    path.chmod(0o640)
    link.symlink_to(path)

    with written(link) as place:
        place.write_text("after")

    assert (link.is_symlink(), path.read_text(), path.stat().st_mode & 0o777) == (True, "after", 0o640)


def test_figures_go_into_a_named_pipe(jobs: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()

    done = sim("run", jobs, *COMMON, "--json", pipe)
    reader.join(timeout=60)

    assert done.returncode == 0, done.stderr
    assert json.loads(read[0])["jobs"] == 2


def test_the_name_of_an_open_file_is_never_replaced(jobs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with out.open("w") as file:
        command = [sys.executable, "-m", "farside", "sim", "trace", "convert", str(jobs), "/proc/self/fd/1"]
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert out.read_text() == TRACE
    assert is_stream(Path("/dev/stdout"))  # though it may well name a regular file
    assert not is_stream(out)


def test_a_folder_is_no_place_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        check_writable((None, tmp_path))
