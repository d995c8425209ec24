"""What an idle node turns down: governors in a made-up sysfs, power caps of a made-up NVML; and what was set before."""

import os
import subprocess
import sys
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path

import pytest
from typer.testing import CliRunner

from farside.agent.rest.cpu_governor import CpuGovernor
from farside.agent.rest.load_average import is_loaded
from farside.agent.rest.saver import RECORD, RestHand
from farside.cli.app import app
from farside.errors import Unavailable
from farside.whole_file import lock_file
from tests.support.programs import Outcome, need

HERE = Path(__file__).parent


def sysfs(root: Path, *governors: str) -> list[Path]:
    files = []
    for at, governor in enumerate(governors):
        folder = root / f"devices/system/cpu/cpufreq/policy{at}"
        folder.mkdir(parents=True)
        (folder / "scaling_available_governors").write_text("performance powersave\n")
        files.append(folder / "scaling_governor")
        files[-1].write_text(governor + "\n")
    return files


def set_now(files: list[Path]) -> list[str]:
    return [file.read_text().strip() for file in files]


def hand(tmp_path: Path, *, boot_id: str = "a", turns_down: str = "cpu") -> RestHand:
    return RestHand([CpuGovernor(root=tmp_path / "sys")], (turns_down,), tmp_path, boot_id)


def test_governors_are_turned_down_and_back_to_what_they_were(tmp_path: Path) -> None:
    files = sysfs(tmp_path / "sys", "performance", "powersave", "performance")
    made = hand(tmp_path)

    made.rest()
    down = set_now(files)
    made.resume()
    made.resume()

    assert set(down) == {"powersave"}
    assert set_now(files) == ["performance", "powersave", "performance"]
    assert not (tmp_path / RECORD).exists()


def test_what_an_agent_that_was_killed_left_turned_down_its_successor_puts_back(tmp_path: Path) -> None:
    files = sysfs(tmp_path / "sys", "performance", "performance")
    hand(tmp_path).rest()

    hand(tmp_path, turns_down="").resume()  # whose settings turn nothing down any more

    assert set_now(files) == ["performance", "performance"]
    assert not (tmp_path / RECORD).exists()


def test_after_a_boot_the_machines_own_settings_stay(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path / "sys", "performance")
    hand(tmp_path).rest()

    hand(tmp_path, boot_id="b").resume()

    assert set_now([file]) == ["powersave"]
    assert not (tmp_path / RECORD).exists()


def test_a_governor_that_somebody_else_set_meanwhile_is_left_alone(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path / "sys", "performance")
    made = hand(tmp_path)
    made.rest()
    file.write_text("ondemand\n")

    made.resume()

    assert set_now([file]) == ["ondemand"]


def test_what_was_set_is_on_the_disk_before_anything_is_turned_down(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path / "sys", "performance")
    made = RestHand([CpuGovernor(root=tmp_path / "sys")], ("cpu",), tmp_path / "gone", "a")

    with pytest.raises(Unavailable, match="what is set now can't be written down"):
        made.rest()

    assert set_now([file]) == ["performance"]


def test_a_record_that_is_damaged_is_one_line_and_stays(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(b"\xff{")

    with pytest.raises(Unavailable, match="rest: what was set before can't be read; look at governors"):
        hand(tmp_path).resume()

    assert (tmp_path / RECORD).exists()


def test_a_record_that_is_no_file_is_one_line_and_nothing_is_turned_down(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path / "sys", "performance")
    (tmp_path / RECORD).mkdir()

    with pytest.raises(Unavailable, match="rest: Is a directory; remove it"):
        hand(tmp_path).rest()

    assert set_now([file]) == ["performance"]


def test_a_rest_never_writes_over_the_record_of_one_that_could_not_be_ended(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path / "sys", "performance")
    hand(tmp_path).rest()
    was = (tmp_path / RECORD).read_bytes()
    file.rename(file.with_name("away"))
    file.mkdir()  # it can't be read
    made = hand(tmp_path)

    for _ in range(2):
        with pytest.raises(Unavailable, match="scaling_governor: Is a directory"):
            made.rest()
    assert (tmp_path / RECORD).read_bytes() == was
    file.rmdir()
    file.with_name("away").rename(file)
    made.rest()
    made.resume()

    assert set_now([file]) == ["performance"]


def test_a_domain_that_cannot_be_read_keeps_no_other_down_and_alone_stays_in_the_record(tmp_path: Path) -> None:
    stuck, good = sysfs(tmp_path / "sys", "performance", "ondemand")
    made = hand(tmp_path)
    made.rest()
    stuck.rename(stuck.with_name("away"))
    stuck.mkdir()

    with pytest.raises(Unavailable, match="policy0/scaling_governor: Is a directory"):
        made.resume()
    stuck.rmdir()
    stuck.with_name("away").rename(stuck)
    good.write_text("powersave\n")  # as somebody else wants it from now on
    made.resume()

    assert set_now([stuck, good]) == ["performance", "powersave"]


def test_a_speed_that_a_program_sets_is_left_alone(tmp_path: Path) -> None:
    files = sysfs(tmp_path / "sys", "performance", "userspace")

    with pytest.raises(Unavailable, match="policy1/scaling_governor: userspace: a program of this machine sets"):
        hand(tmp_path).rest()

    assert set_now(files) == ["performance", "userspace"]


def test_what_another_version_has_turned_down_stays_in_the_record(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('{"boot_id": "a", "savers": {"disk": {"it": "up"}}}')

    with pytest.raises(Unavailable, match="another version of Farside has turned down disk"):
        hand(tmp_path).resume()

    assert hand(tmp_path).has_record


def test_without_an_agent_a_command_puts_back_what_one_that_was_killed_has_left(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path / "sys", "performance")
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("a\n")
    hand(tmp_path).rest()
    argv = ["agent", "--end-rest"]
    for setting in ("manager=unix:/none", f"state_dir={tmp_path}", f"proc_root={tmp_path}/proc"):
        argv += ["--set", setting]

    lock = lock_file(tmp_path / "agent.lock")
    assert lock is not None
    refused = CliRunner().invoke(app, argv)
    os.close(lock)
    down = set_now([file])
    done = [CliRunner().invoke(app, argv).exit_code for _ in range(2)]

    assert "an agent works in it; it ends its rest itself" in str(refused.exception)
    assert (down, set_now([file]), done) == (["powersave"], ["performance"], [0, 0])
    assert not (tmp_path / RECORD).exists()


def test_only_a_load_average_above_the_bound_is_a_load(tmp_path: Path) -> None:
    said = {"0.50 9.00 9.00 1/100 1": False, "0.51 0.00 0.00 1/100 1": True, "": False}

    for text, is_so in said.items():
        (tmp_path / "loadavg").write_text(text)
        assert is_loaded(tmp_path) is is_so
    assert not is_loaded(tmp_path / "none")


def test_a_machine_without_cpufreq_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="this machine has no cpufreq; leave cpu out of rest"):
        hand(tmp_path).rest()
    assert not (tmp_path / RECORD).exists()


def test_a_governor_that_one_domain_lacks_is_set_nowhere(tmp_path: Path) -> None:
    first, second = sysfs(tmp_path / "sys", "performance", "performance")
    (second.parent / "scaling_available_governors").write_text("performance\n")

    with pytest.raises(Unavailable, match="no governor powersave"):
        hand(tmp_path).rest()

    assert set_now([first]) == ["performance"]


def test_after_the_end_nothing_is_turned_down(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path / "sys", "performance")
    made = hand(tmp_path)
    made.rest()

    made.end()
    made.rest()

    assert set_now([file]) == ["performance"]


class Knob:
    """A saver that may be stuck. ``is_down``: turned down."""

    def __init__(self, name: str, *, stuck: str = "") -> None:
        self.name, self.stuck, self.is_down = name, stuck, False

    def settings(self) -> Mapping[str, str]:
        return {"it": "up"}

    def lower(self) -> None:
        if self.stuck == "lower":
            raise Unavailable("it is stuck")
        self.is_down = True

    def restore(self, before: Mapping[str, str]) -> Mapping[str, str]:
        if self.stuck == "restore":
            raise Unavailable("it is stuck")
        assert before == {"it": "up"}
        self.is_down = False
        return {}


def test_all_are_turned_down_or_none(tmp_path: Path) -> None:
    good, bad = Knob("good"), Knob("bad", stuck="lower")

    with pytest.raises(Unavailable, match="it is stuck"):
        RestHand([good, bad], ("good", "bad"), tmp_path, "a").rest()

    assert not good.is_down
    assert not (tmp_path / RECORD).exists()


def test_one_that_is_stuck_does_not_keep_the_others_down_and_is_tried_again(tmp_path: Path) -> None:
    bad, good = Knob("bad", stuck="restore"), Knob("good")
    made = RestHand([bad, good], ("good", "bad"), tmp_path, "a")
    made.rest()

    with pytest.raises(Unavailable, match="it is stuck"):
        made.resume()
    downs = bad.is_down, good.is_down
    bad.stuck = ""
    made.resume()

    assert downs == (True, False)
    assert not bad.is_down


# In a process of its own: a library that is loaded once stays.
_USE = """
import sys
from pathlib import Path
from farside.errors import Unavailable
from farside.agent.rest.gpu_cap import GpuCap
from farside.agent.rest.saver import RestHand
folder, steps = sys.argv[1], sys.argv[2:]
hand = RestHand([GpuCap()], ("gpu",), Path(folder), "a")
try:
    for step in steps:
        getattr(hand, step)()
except Unavailable as error:
    sys.exit(f"unavailable: {error}")
"""


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("gcc")
    pytest.importorskip("pynvml", reason="not installed: nvidia-ml-py")
    folder = tmp_path_factory.mktemp("nvml")
    argv = ["gcc", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", str(HERE / "nvml_stub.c")]
    subprocess.run(argv, cwd=folder, check=True)
    return folder


GPUS = "GPU-b 200000 700000\nGPU-a 100000 350000\n"
DOWN = "GPU-b 200000 200000\nGPU-a 100000 100000\n"


def use(nvml: Path, caps: Path, *steps: str, **variables: str) -> Outcome:
    environment = {"LD_LIBRARY_PATH": str(nvml), "NVML_CAPS": str(caps), **variables}
    argv = [sys.executable, "-c", _USE, str(caps.parent), *steps]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return Outcome(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.mark.parametrize(
    ("steps", "after"),
    [(("rest",), DOWN), (("rest", "resume", "resume"), GPUS), (("rest", "end", "rest"), GPUS)],
)
def test_caps_are_turned_down_and_back(nvml: Path, tmp_path: Path, steps: tuple[str, ...], after: str) -> None:
    caps = tmp_path / "caps"
    caps.write_text(GPUS)

    done = use(nvml, caps, *steps, NVML_NO_END="1")

    assert (done.status, done.stderr) == (0, "")
    assert caps.read_text() == after


def test_caps_outlive_a_process_that_is_killed_and_one_that_somebody_set_is_left_alone(
    nvml: Path, tmp_path: Path
) -> None:
    caps = tmp_path / "caps"
    caps.write_text(GPUS)
    use(nvml, caps, "rest")
    caps.write_text(DOWN.replace("100000 100000", "100000 300000"))

    done = use(nvml, caps, "resume")

    assert (done.status, done.stderr) == (0, "")
    assert caps.read_text() == GPUS.replace("350000", "300000")


def test_a_gpu_that_is_lost_keeps_no_other_down_and_is_tried_again(nvml: Path, tmp_path: Path) -> None:
    caps = tmp_path / "caps"
    caps.write_text(GPUS)
    use(nvml, caps, "rest")

    done = use(nvml, caps, "resume", NVML_LOST="GPU-b")
    meanwhile = caps.read_text()
    again = use(nvml, caps, "resume")

    assert "unavailable: GPU GPU-b: GPU is lost" in done.stderr
    assert meanwhile == "GPU-b 200000 200000\nGPU-a 100000 350000\n"
    assert (again.status, caps.read_text()) == (0, GPUS)


def test_caps_are_put_back_by_uuid_whatever_the_order_and_one_that_is_gone_has_none(nvml: Path, tmp_path: Path) -> None:
    caps = tmp_path / "caps"
    caps.write_text(GPUS)
    use(nvml, caps, "rest")
    caps.write_text("GPU-a 100000 100000\nGPU-c 100000 100000\n")

    done = use(nvml, caps, "resume")

    assert (done.status, done.stderr) == (0, "")
    assert caps.read_text() == "GPU-a 100000 350000\nGPU-c 100000 100000\n"


def test_a_gpu_with_a_process_that_is_not_farsides_keeps_the_node_up(nvml: Path, tmp_path: Path) -> None:
    caps = tmp_path / "caps"
    caps.write_text(GPUS)

    done = use(nvml, caps, "rest", NVML_BUSY="GPU-a")

    assert "unavailable: GPU GPU-a has processes" in done.stderr
    assert caps.read_text() == GPUS


def test_a_cap_in_the_record_that_is_no_number_is_one_line(nvml: Path, tmp_path: Path) -> None:
    caps = tmp_path / "caps"
    caps.write_text(DOWN)
    (tmp_path / RECORD).write_text('{"boot_id": "a", "savers": {"gpu": {"GPU-a": "350000", "GPU-b": "much"}}}')

    done = use(nvml, caps, "resume")

    assert "unavailable: GPU GPU-b: invalid literal" in done.stderr
    assert caps.read_text() == "GPU-b 200000 200000\nGPU-a 100000 350000\n"


def test_caps_that_only_root_may_set_say_so(nvml: Path, tmp_path: Path) -> None:
    caps = tmp_path / "caps"
    caps.write_text(GPUS)

    done = use(nvml, caps, "rest", NVML_LOCKED="1")

    assert "it takes root" in done.stderr
    assert caps.read_text() == GPUS


def test_a_machine_without_nvml_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="not installed: nvidia-ml-py")
    if find_library("nvidia-ml"):
        pytest.skip("this machine has an NVML of its own, whose caps are left alone")

    done = use(tmp_path, tmp_path / "caps", "rest")

    assert "NVML does not start" in done.stderr
