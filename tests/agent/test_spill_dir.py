"""The folder for input of co-located jobs that does not fit in their memory: what an agent asks of it at its start."""

import os
from pathlib import Path

import pytest

from farside.agent.startup import spill_dir_of
from farside.config import AgentConfig
from farside.errors import ConfigError
from farside.kmod_shim.disk_backing import find_backing
from tests.agent.process import agent, write_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One on a disk, that all users reach."""
    if find_backing(tmp_path).is_memory:
        pytest.skip("the tests' folder is in memory")
    made = tmp_path / "blocks"
    made.mkdir()
    for one in (made, *made.parents):
        if one.stat().st_uid == os.getuid() and not one.stat().st_mode & 1:
            one.chmod(one.stat().st_mode | 1)
    made.chmod(0o1777)
    return made


def of(folder: Path, run_as: str = "submitter") -> Path | None:
    return spill_dir_of(AgentConfig(spill_dir=folder, run_as=run_as))


def test_no_folder_is_none_and_a_good_one_is_taken_as_it_is_named(folder: Path) -> None:
    assert of(Path()) is None
    assert of(folder) == folder
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert of(link) == link


@pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that runs as root runs tasks of others")
def test_a_folder_in_which_not_all_users_make_files_is_refused_by_an_agent_that_runs_all_users_tasks(
    folder: Path,
) -> None:
    for mode in (0o777, 0o1770, 0o755):
        folder.chmod(mode)
        with pytest.raises(ConfigError, match="not all users can make files there") as caught:
            of(folder)
        assert caught.value.hint == f"chmod 1777 {folder}"
    assert of(folder, "starter") == folder

    folder.chmod(0o1777)
    folder.parent.chmod(0o700)
    with pytest.raises(ConfigError, match="users can't reach it") as caught:
        of(folder)
    assert caught.value.hint == f"chmod o+x {folder.parent}"


def test_what_is_no_folder_or_in_memory_is_refused(folder: Path) -> None:
    file = folder / "file"
    file.touch()
    wrong = [(folder / "none", "No such file or directory"), (file, "is no folder")]
    if find_backing(Path("/dev/shm")).is_memory:
        wrong.append((Path("/dev/shm"), "is in memory"))
    for path, line in wrong:
        with pytest.raises(ConfigError, match=line):
            of(path)


def test_an_agent_whose_folder_is_not_there_ends_with_one_line(tmp_path: Path) -> None:
    with agent(write_config(tmp_path, "ws://127.0.0.1:1", spill_dir=str(tmp_path / "none"))) as process:
        _, told = process.communicate(timeout=60)

    assert process.returncode == 2
    assert f"spill_dir {tmp_path / 'none'}: No such file or directory" in told
    assert "Traceback" not in told
