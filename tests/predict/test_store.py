"""Models in files."""

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError, FarsideError
from farside.scheduler.predict.model_files import KEPT, ModelStore
from farside.scheduler.predict.service import ModelRecord

RECORD = ModelRecord(
    service="qssf", text="tree\n" * 100, features=("a", "b"), trained_from_s=1.0, trained_to_s=2.0, trained_on=3,
    params={"lambda": 0.5}, tables={"user": {"änn": 0}}, metrics={"saving_model": 0.7},
)  # fmt: skip


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    ModelStore(tmp_path / "new" / "folder").save(RECORD)

    assert ModelStore(tmp_path / "new" / "folder").load("qssf") == RECORD


def test_figures_that_are_none_are_left_out(tmp_path: Path) -> None:
    ModelStore(tmp_path).save(replace(RECORD, metrics={"spearman": float("nan"), "saving_gpus": 0.1}))

    assert ModelStore(tmp_path).load("qssf").metrics == {"saving_gpus": 0.1}


def test_versions_count_up_and_the_newest_texts_are_kept(tmp_path: Path) -> None:
    versions = [ModelStore(tmp_path).save(replace(RECORD, text=f"tree {at}")).version for at in range(5)]

    assert versions == [1, 2, 3, 4, 5]
    assert len(list(tmp_path.glob("qssf-*.txt"))) == KEPT
    assert ModelStore(tmp_path).load("qssf").text == "tree 4"


def test_a_kill_before_the_manifest_leaves_the_old_model(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.save(RECORD)
    (tmp_path / "qssf-2.txt").write_text("half a tr")

    assert store.load("qssf") == RECORD
    assert store.save(RECORD).version == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.integers(0, 499))
def test_a_text_that_was_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    manifest = ModelStore(tmp_path).save(RECORD)
    (tmp_path / manifest.text_file).write_text(RECORD.text[:length])

    with pytest.raises(ConfigError, match=f"has {length} bytes, not the 500 of its manifest; fit it again"):
        ModelStore(tmp_path).load("qssf")


def test_a_text_with_another_byte_is_refused(tmp_path: Path) -> None:
    manifest = ModelStore(tmp_path).save(RECORD)
    (tmp_path / manifest.text_file).write_text("T" + RECORD.text[1:])

    with pytest.raises(ConfigError, match="is not what was written"):
        ModelStore(tmp_path).load("qssf")


def test_a_text_that_is_no_text_is_refused(tmp_path: Path) -> None:
    manifest = ModelStore(tmp_path).save(RECORD)
    (tmp_path / manifest.text_file).write_bytes(b"\xff" * 500)
    path = tmp_path / "qssf.json"
    path.write_text(path.read_text().replace(manifest.text_sha256, hashlib.sha256(b"\xff" * 500).hexdigest()))

    with pytest.raises(ConfigError, match="is not UTF-8; fit it again"):
        ModelStore(tmp_path).load("qssf")


def cut_manifest(raw: str) -> str:
    return raw[: len(raw) // 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.replace('"format": 2', '"format": 1'), "has format 1; this version reads 2"),
        (lambda raw: raw.replace('"format": 2', '"form": 2'), "has format unknown"),
        (cut_manifest, "Input data was truncated"),
        (lambda raw: "", "truncated"),
        (lambda raw: raw.replace('"trained_on": 3', '"trained_on": "many"'), "Expected `int`"),
        (lambda raw: raw.replace('"service": "qssf"', '"service": "ces"'), "is of service 'ces', not qssf"),
        (lambda raw: raw.replace('"qssf-1.txt"', '"../qssf-1.txt"'), "is no name of a file"),
        (lambda raw: raw.replace('"qssf-1.txt"', '"gone.txt"'), "No such file"),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    ModelStore(tmp_path).save(RECORD)
    path = tmp_path / "qssf.json"
    path.write_text(change(path.read_text()))

    with pytest.raises(ConfigError, match=message) as caught:
        ModelStore(tmp_path).load("qssf")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="farside predict fit makes a model"):
        ModelStore(tmp_path).load("qssf")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(FarsideError, match="the model was not kept"):
        ModelStore(tmp_path / "file").save(RECORD)


@pytest.mark.parametrize("name", ["", "qssf.json", "qssf-1.txt"])
def test_models_that_everybody_may_write_are_refused(tmp_path: Path, name: str) -> None:
    ModelStore(tmp_path).save(RECORD)
    (tmp_path / name).chmod(0o777)

    with pytest.raises(ConfigError, match="everybody may write it"):
        ModelStore(tmp_path).load("qssf")


def test_models_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ModelStore(tmp_path).save(RECORD)
    if tmp_path.stat().st_uid == 0:
        os.chown(tmp_path / "qssf.json", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(ConfigError, match="belongs to another user"):
        ModelStore(tmp_path).load("qssf")


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(FarsideError, match="No space left"):
        ModelStore(tmp_path).save(RECORD)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_room_is_found_out_before_the_fit() -> None:
    with pytest.raises(FarsideError, match="name a folder that can be written"):
        ModelStore(Path("/proc/farside")).check()
