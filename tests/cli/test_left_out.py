"""Commands in an installation that lacks what only some of them need, as the Debian package does."""

import subprocess
import sys
from pathlib import Path

import pytest

from farside.cli.app import IN_SOME_COMMANDS
from tools.build_deb import LEFT_OUT

# The packages are here: a finder before all others says that they are not.
INSTALLED_WITHOUT = f"""
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(LEFT_OUT)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nowhere())
from farside.cli import main
main()
"""
CLUSTER = ("--nodes", "2", "--gpus-per-node", "8")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "t.csv"
    rows = "".join(f"{at},{at * 60},1,600,a,user,job\n" for at in range(40))
    file.write_text(f"job_id,submit_s,gpus,duration_s,vc,user,name\n{rows}")
    return file


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", INSTALLED_WITHOUT, *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        (("trace", "report", "TRACE", *CLUSTER, "-o", "OUT.html"), "matplotlib"),
        (("sim", "run", "TRACE", *CLUSTER, "--policy", "las", "--report", "OUT.html"), "matplotlib"),
        (("sim", "run", "TRACE", *CLUSTER, "--policy", "las", "--jobs-out", "OUT.parquet"), "pyarrow"),
    ],
)
def test_a_command_whose_package_is_not_there_says_which_in_one_line(
    tmp_path: Path, trace: Path, arguments: tuple[str, ...], package: str
) -> None:
    """Eight documented commands of the Debian package ended in a traceback."""
    told = [word.replace("TRACE", str(trace)).replace("OUT", str(tmp_path / "out")) for word in arguments]

    done = run(*told)

    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"farside: this command needs the Python package {package}, which is not installed here"
    )
    assert "Traceback" not in done.stderr


def test_a_simulation_runs_without_them(trace: Path) -> None:
    done = run("sim", "run", trace, *CLUSTER, "--policy", "las")

    assert done.returncode == 0, done.stderr


def test_whatever_the_package_leaves_out_has_such_a_line() -> None:
    assert LEFT_OUT <= IN_SOME_COMMANDS


def test_a_module_of_ours_that_is_missing_is_a_fault_and_no_advice() -> None:
    code = "from farside.cli import app; app._run = lambda: __import__('farside.nothing'); app.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "Traceback" in done.stderr
