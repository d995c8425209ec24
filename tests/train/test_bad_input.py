"""What is wrong with the input or the options of `farside train`: one line each, with file, line and column."""

import gzip
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from farside.cli import train_worker
from farside.errors import ConfigError
from farside.training.app import dataset, memory_need
from farside.training.app.catalog import PROGRAMS
from farside.training.app.dataset import Input, load
from farside.training.app.memory_need import check_memory
from farside.training.app.program import AppName, Options, nobody_watches
from farside.training.loop.ended import Diverged
from tests.train.programs import ended, train


def saved(**arrays: Any) -> bytes:
    """An .npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def saved_array(array: Any) -> bytes:
    """An .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


FILES: dict[str, str | bytes] = {
    "empty.csv": "",
    "words.csv": "1,2\n3,four\n",
    "names.csv": "# of two columns\n\nheight,weight\n1,2\n",
    "short.csv": "# of two columns\n1,2\n\n3\n",
    "blanks.csv": "1,2\n \n",
    "noted.csv": "# of two columns\n1,2\n\n3,nan # missing\n",
    "noted.csv.gz": gzip.compress(b"# of two columns\n1,2\n\n3,-4\n"),
    "binary.csv": b"\xff\xfe\x00",
    "large.csv": "1,2\n3,1e200\n",
    "rows.npy": saved_array(np.array([[1.0, 2.0], [3.0, np.nan]])),
    "fives.csv": "1,5\n2,5\n",
    "nan.csv": "1,2\n3,nan\n",
    "minus.csv": "1,2\n3,-4\n",
    "half.csv": "1,2.5\n",
    "labels.csv": "1,0\n2,1.5\n",
    "below.csv": "1,0\n2,-1\n",
    "zeros.csv": "1,0\n2,0\n",
    "one.csv": "1\n2\n",
    "rows.txt": "1,2\n",
    "torn.npz": b"PK\x03\x04 nothing",
    "torn.npy": b"\x93NUMPY\x01",
    "garbage.npy": b"garbage",
    "garbage.npz": b"garbage",
    "long.npy": b"\x93NUMPY\x01\x00\xff\xff" + b" " * 65535,
    "objects.npy": saved_array(np.array([[None]])),
    "words.ldac": "1 0:1\n1 zero:1\n",
    "minus.ldac": "1 0:1\n2 0:1 1:-1\n",
    "none.ldac": "",
    "silent.ldac": "0\n0\n",
    "far.ldac": "1 0:1\n1 3000000000:1\n",
    "many.ldac": "1 0:99999999999999999999\n",
    "short.ldac": "1 0:1\n3 0:1 1:1\n",
    "blank.ldac": "1 0:1\n\n",
    "void.npy": b"",
    "void.npz": b"",
    "cut.csv.gz": gzip.compress(b"1,2\n" * 1000)[:-12],
    "hurt.csv.gz": gzip.compress(b"")[:10] + b"\xff" * 40,
    "longer.npz": saved(X=np.ones((2, 2)), y=np.ones(3)),
    "shorter.npz": saved(X=np.ones((2, 2)), y=np.ones(1)),
    "array.npz": saved_array(np.ones((2, 2))),
    "flat.csv": "0,1\n0,2\n",
}
CASES = [
    ("nmf", "missing.csv", "data: there is no file '.*missing.csv', and no such data set"),
    ("nmf", "empty.csv", "empty.csv: has no line of numbers$"),
    ("nmf", "words.csv", "words.csv: line 2, column 2: 'four' is not a number; a line is numbers with commas between"),
    ("nmf", "names.csv", "names.csv: line 3, column 1: 'height' is not a number"),
    ("nmf", "short.csv", "short.csv: line 4: has 1 column, and the lines before it have 2$"),
    ("nmf", "blanks.csv", "blanks.csv: line 2, column 1: '' is not a number"),
    ("nmf", "noted.csv", "noted.csv: line 4, column 2: is nan"),
    ("lasso", "noted.csv", "noted.csv: line 4, target: is nan"),
    ("nmf", "noted.csv.gz", "noted.csv.gz: line 4, column 2: is -4"),
    ("nmf", "binary.csv", "binary.csv: line 1, column 1: .* is not a number"),
    ("nmf", "large.csv", r"large.csv: line 2, column 2: is 1e\+200; scale the column"),
    ("lasso", "large.csv", r"large.csv: line 2, target: is 1e\+200; scale the column"),
    ("nmf", "rows.npy", "rows.npy: row 2, column 2: is nan"),
    ("mlr", "fives.csv", "fives.csv: all labels are 5; two classes at least are needed"),
    ("nmf", "nan.csv", "nan.csv: line 2, column 2: is nan"),
    ("nmf", "minus.csv", "minus.csv: line 2, column 2: is -4; this program needs numbers from 0 on"),
    ("lda", "minus.csv", "minus.csv: line 2, column 2: is -4; this program needs counts"),
    ("lda", "half.csv", "half.csv: line 1, column 2: is 2.5"),
    ("mlr", "labels.csv", "labels.csv: line 2: label 1.5; labels are 0, 1, 2"),
    ("mlr", "below.csv", "below.csv: line 2: label -1"),
    ("mlr", "zeros.csv", "zeros.csv: all labels are 0"),
    ("mlr", "one.csv", "one.csv: has one column; the last one is the target"),
    ("lasso", "nan.csv", "nan.csv: line 2, target: is nan"),
    ("lasso", "rows.txt", "rows.txt: is neither"),
    ("lasso", "torn.npz", "torn.npz: "),
    ("nmf", "torn.npy", "torn.npy: "),
    ("nmf", "garbage.npy", "garbage.npy: is damaged, or no .npy file of numbers; write it by numpy.save$"),
    ("mlr", "garbage.npz", "garbage.npz: is damaged, or no .npz file of numbers; write it by numpy.savez$"),
    ("nmf", "long.npy", "long.npy: is damaged, or no .npy file of numbers; write it by numpy.save$"),
    ("nmf", "objects.npy", "objects.npy: is damaged, or no .npy file of numbers; write it by numpy.save$"),
    ("lda", "words.ldac", "words.ldac: line 2: '1 zero:1' is no document; a line is N word:count word:count"),
    ("lda", "minus.ldac", "minus.ldac: line 2, column 3: a number below 0"),
    ("lda", "none.ldac", "none.ldac: has no rows"),
    ("lda", "silent.ldac", "silent.ldac: has no words"),
    ("lda", "far.ldac", "far.ldac: line 2, column 2: a number too large; words are less than"),
    ("lda", "many.ldac", "many.ldac: line 1, column 2: a number too large"),
    ("lda", "short.ldac", "short.ldac: line 2: says 3 words and has 2"),
    ("lda", "blank.ldac", "blank.ldac: line 2: is empty"),
    ("nmf", "void.npy", "void.npy: "),
    ("nmf", "void.npz", "void.npz: "),
    ("nmf", "cut.csv.gz", "cut.csv.gz: "),
    ("nmf", "hurt.csv.gz", "hurt.csv.gz: "),
    ("mlr", "longer.npz", "longer.npz: X has 2 rows and y has 3"),
    ("lasso", "shorter.npz", "shorter.npz: X has 2 rows and y has 1"),
    ("lasso", "array.npz", "array.npz: holds one array; an .npz file has X and y"),
    ("lasso", "flat.csv", "flat.csv: all columns but the target are 0"),
]


@pytest.mark.parametrize(("app", "name", "line"), CASES)
def test_a_file_that_does_not_fit_is_refused_with_its_place(tmp_path: Path, app: Any, name: str, line: str) -> None:
    if name in FILES:
        content = FILES[name]
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(ConfigError, match=line) as caught:
        load(Options(app=app, data=str(tmp_path / name)))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["garbage.npy", "long.npy", "objects.npy"])
def test_a_file_that_is_no_array_is_refused_where_it_would_be_spilled_too(tmp_path: Path, name: str) -> None:
    content = FILES[name]
    assert isinstance(content, bytes)
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match="is damaged, or no") as caught:
        load(Options(app="nmf", data=str(tmp_path / name)), lets_go=True)

    assert "pickle" not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rows.csv", "rows.npy", "rows.ldac"])
def test_a_pipe_is_refused_and_nobody_waits_for_it(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)

    code, out, errors = ended(train("nmf", "--data", tmp_path / name))

    line = f"farside: data: '{tmp_path / name}' is no regular file; write the data to a file first\n"
    assert (code, out, errors) == (2, "", line)


@pytest.mark.parametrize("mark", ["\x0b", *(pytest.param(mark, marks=pytest.mark.long) for mark in "\x1c\x85\u2028")])
def test_a_cell_with_what_looks_like_a_line_end_is_one_line(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "cell.csv"
    path.write_text(f"1,2\n3,a{mark}b\n", encoding="utf-8")

    code, out, errors = ended(train("nmf", "--data", path, "--workers", 2, "--blocks", 2))

    shown = mark.encode("unicode_escape").decode("ascii")
    hint = "a line is numbers with commas between, or begins with #"
    line = f"farside: {path}: line 2, column 2: 'a{shown}b' is not a number; {hint}\n"
    assert (code, out, errors) == (2, "", line)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"app": "lda", "data": "digits"}, "data: digits is not for lda; use reuters, synthetic or a file"),
        ({"app": "nmf", "data": "synthetic", "rows": 0}, "0 rows and 200 columns"),
        ({"app": "nmf", "data": "digits", "blocks": 5000}, "blocks: 5000 for 1797 rows"),
        ({"app": "mlr", "data": "synthetic", "classes": 1}, "classes: is 1"),
        (
            {"app": "lasso", "data": "synthetic", "rows": 10**7, "columns": 1, "blocks": 100_001},
            "^blocks: is 100001; at most 100000 are taken, since each takes memory and time of its own; choose fewer",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load(Options(**options))


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    rows, target = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2.0])
    np.savez(tmp_path / "rows.npz", X=rows, y=target)
    np.savetxt(tmp_path / "rows.csv", np.column_stack([rows, target]), delimiter=",")

    of_npz, of_csv = (load(Options(app="mlr", data=str(tmp_path / f"rows.{end}"), blocks=2)) for end in ("npz", "csv"))

    assert of_npz.classes == of_csv.classes == 3
    for one, other in zip(of_npz.blocks, of_csv.blocks, strict=True):
        assert [part.tobytes() for part in one] == [part.tobytes() for part in other]
    counts = np.array([[2, 0, 1], [0, 0, 3]])
    np.save(tmp_path / "counts.npy", counts)
    (tmp_path / "counts.ldac").write_text("2 0:2 2:1\n1 2:3\n")
    documents = [load(Options(app="lda", data=str(tmp_path / f"counts.{end}"))) for end in ("npy", "ldac")]
    assert [[list(words) for _, words in one.blocks] for one in documents] == [[[0, 0, 2], [2, 2, 2]]] * 2


def test_an_objective_that_is_not_finite_ends_the_job_in_one_line() -> None:
    blocks = [(np.ones((2, 2)), np.array([0.0, 1e200]))] * 2
    data = Input(blocks=blocks, rows=4, columns=2, fingerprint="huge targets")

    with np.errstate(all="ignore"), pytest.raises(Diverged, match=r"the objective is (nan|inf) after iteration 1"):
        PROGRAMS["lasso"](data, Options(app="lasso", data=""), nobody_watches)


def test_a_last_objective_that_is_not_finite_is_no_model() -> None:
    blocks = [(np.ones((2, 2)), np.array([0.0, 1e200]))] * 2
    data = Input(blocks=blocks, rows=4, columns=2, fingerprint="huge targets")

    with np.errstate(all="ignore"), pytest.raises(Diverged, match=r"the objective is (nan|inf) after iteration 1"):
        PROGRAMS["lasso"](data, Options(app="lasso", data="", iterations=1), nobody_watches)


def test_input_whose_squares_are_no_numbers_ends_the_job_in_one_line() -> None:
    blocks = [(np.full((2, 2), 1e200), np.ones(2))] * 2
    data = Input(blocks=blocks, rows=4, columns=2, fingerprint="huge rows")

    apps: tuple[AppName, ...] = ("lasso", "mlr")
    for app in apps:
        options = Options(app=app, data="")
        with np.errstate(all="ignore"), pytest.raises(Diverged, match="the sum of the input's squares is inf"):
            PROGRAMS[app](replace(data, classes=2, blocks=_labelled(blocks, app)), options, nobody_watches)


def _labelled(blocks: list[Any], app: str) -> list[Any]:
    return [(rows, targets.astype(np.int64) if app == "mlr" else targets) for rows, targets in blocks]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nmf", "--threads", "999"), "threads: is 999; this machine has"),
        (("nmf", "--retries", "1"), "--retries without a checkpoint folder; add --checkpoint-dir"),
        (("nmf", "--service", "tcp:127.0.0.1:1"), "Aggregators are named without their key file; add --key-file"),
        (("lasso", "--penalty", "nan"), "--penalty: is nan; a number is needed"),
        (("nmf", "--tolerance", "nan"), "--tolerance: is nan"),
        (("lda", "--alpha", "nan"), "--alpha: is nan"),
        (("nmf", "--checkpoint-s", "nan"), "--checkpoint-s: is nan"),
        (("nmf", "--out", "none/model.npz"), "--out: no file can be made in '"),
        (("missing.py",), "there is no file 'missing.py'"),
        (("mlr", "--workers", 40), "--workers: 40 for 32 input blocks, and each needs one; add --blocks 40 or more"),
        (("mlr", "--workers", 3, "--blocks", 2), "--workers: 3 for 2 input blocks"),
        (
            ("mlr", "--rows", 50),
            "--rows: is for --data synthetic, and this job has digits; leave it out, or add --data synthetic",
        ),
        (("lasso", "--columns", 5), "--columns: is for --data synthetic, and this job has diabetes"),
        (("mlr", "--classes", 5), "--classes: is for --data synthetic, and this job has digits"),
        (
            ("mlr", "--data", "synthetic", "--rows", 10**12),
            "mlr: 1,000,000,000,000 rows, 200 columns, 10 classes take 1455 TiB of memory at least, and ",
        ),
        (("nmf", "--rank", 10**8, "--workers", 2), "nmf: 64 columns, 100,000,000 components (--rank) take "),
    ],
)
def test_a_command_that_cant_be_run_says_why(words: tuple[str, ...], line: str) -> None:
    code, out, errors = ended(train(*words))

    assert (code, out) == (2, "")
    assert errors.startswith(f"farside: {line}")
    assert errors.count("\n") == 1


@pytest.mark.long
def test_input_that_every_worker_refuses_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "big.csv"
    path.write_text("".join(f"{number}e200,{number}\n" for number in range(1, 7)))

    code, out, errors = ended(train("lasso", "--data", path, "--workers", 3, "--blocks", 3))

    wanted = f"farside: {path}: line 1, column 1: is 1e+200; scale the column: numbers are from -1e+100 to 1e+100\n"
    assert (code, out, errors) == (2, "", wanted)


def test_memory_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draws(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(dataset, "load", draws)

    code = train_worker.main([msgspec.json.encode(Options(app="nmf", data="synthetic")).decode()])

    line = "farside: there is not enough memory: Unable to allocate 9 TiB; choose fewer rows, columns or components\n"
    assert (code, capsys.readouterr().err) == (2, line)


def test_workers_that_slurm_started_share_a_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def stops(_: Options, **how: Any) -> None:
        told.update(how)
        raise ConfigError("enough is known")

    monkeypatch.setattr(dataset, "load", stops)
    slurm = {"PROCID": "5", "NTASKS": "6", "STEP_TASKS_PER_NODE": "4,2", "NODEID": "1"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)

    train_worker.main([msgspec.json.encode(Options(app="nmf", data="synthetic")).decode()])

    assert (told["workers"], told["here"]) == (6, 2)


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"app": "nmf", "components": 3}, 8 * (2 * 3 * (20 + 3) + 7 * 3 + 7 * 20)),
        ({"app": "lda", "components": 3}, 8 * (3 * 3 * 20 + 7 * 3)),
        ({"app": "mlr", "classes": 5}, 8 * (4 * 5 * 20 + 7 * 20)),
        ({"app": "lasso"}, 8 * (4 * 20 + 7 * 20)),
    ],
)
def test_what_takes_more_memory_than_there_is_is_refused(options: dict[str, Any], needed: int) -> None:
    wanted = Options(data="synthetic", **options)
    sizes = {"rows": 7, "columns": 20, "classes": options.get("classes", 0)}

    check_memory(wanted, **sizes, has_bytes=needed)
    with pytest.raises(ConfigError, match=f"^{wanted.app}: 7 rows, 20 columns.* of memory at least, and .* is there"):
        check_memory(wanted, **sizes, has_bytes=needed - 1)


def test_all_workers_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(app="lasso", data="synthetic", rows=40, columns=20, blocks=10)
    monkeypatch.setattr(memory_need, "_has_bytes", lambda: 4 * 8 * (4 * 20 + 10 * 20) - 1)

    load(options, workers=4, here=3)
    line = "^lasso: 10 rows a worker, 20 columns take 8.75 KiB of memory at least with 4 workers on this machine, and "
    with pytest.raises(ConfigError, match=line):
        load(options, workers=4, here=4)
    monkeypatch.setattr(memory_need, "_has_bytes", lambda: 4 * 8 * (4 * 20 + 4 * 20) - 1)
    load(options, lets_go=True, workers=4, here=3)
    with pytest.raises(ConfigError, match="lasso: 4 rows a worker"):
        load(options, lets_go=True, workers=4, here=4)


@pytest.mark.long
def test_workers_are_told_how_many_share_their_machine() -> None:
    rows = 10**12

    code, out, errors = ended(train("lasso", "--data", "synthetic", "--rows", rows, "--columns", 1, "--workers", 2))

    assert (code, out) == (2, "")
    line = "farside: lasso: 500,000,000,000 rows a worker, 1 columns take 7.28 TiB of memory at least with 2 workers on"
    assert errors.startswith(line)


def test_a_worker_that_finds_no_executor_says_so_once(tmp_path: Path) -> None:
    words = ("lasso", "--iterations", 3, "--executor", tmp_path / "none")

    code, _, errors = ended(train(*words))

    assert code == 0
    assert errors.count("no executor answers; this worker goes on without turns") == errors.count("\n") == 1


def test_documents_of_other_lengths_are_another_input(tmp_path: Path) -> None:
    path = tmp_path / "some.ldac"
    seen = set()
    for text in ("2 0:1 1:1\n1 2:1\n", "1 0:1\n2 1:1 2:1\n"):
        path.write_text(text)
        seen.add(load(Options(app="lda", data=str(path))).fingerprint)

    assert len(seen) == 2


def test_lda_without_numba_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError")

    code, _, errors = ended(train("lda", "--data", "synthetic", environment={"PYTHONPATH": str(tmp_path)}))

    assert (code, errors) == (2, "farside: lda needs the package numba; pip install numba\n")
