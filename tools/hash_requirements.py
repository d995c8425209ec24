"""`make hashes`: each file of requirements/ with the hashes that its pins have on PyPI, in requirements/hashed/.

`make venv` and its kind install by these, and pip refuses a file that has another hash. All files of a version are
listed, so that every platform finds its own. PyTorch is left out: its build for CPUs comes from an index that is not
PyPI (requirements/cluster.txt). Peers have versions of their own (requirements/peers.txt), and are asked for apart.
Needs uv, which `make hashes` installs.
"""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = "# Made by `make hashes` of requirements/{name}; change that one.\n"
LEFT_OUT = "cluster.txt"
APART = "peers.txt"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")


def main() -> int:
    """Writes all files, or none."""
    files = [path for path in sorted((ROOT / "requirements").glob("*.txt")) if path.name != LEFT_OUT]
    try:
        made = _made([path for path in files if path.name != APART]) | _made(
            [path for path in files if path.name == APART]
        )
    except subprocess.CalledProcessError as error:
        print(f"farside: uv ended with {error.returncode}: {error.stderr.strip()}", file=sys.stderr)
        return 1
    except KeyError as error:
        print(f"farside: PyPI has no file of {error.args[0]}; requirements/ names it", file=sys.stderr)
        return 1
    folder = ROOT / "requirements/hashed"
    folder.mkdir(exist_ok=True)
    for name, text in made.items():
        (folder / name).write_text(text)
    return 0


def _made(files: Sequence[Path]) -> dict[str, str]:
    """The hashed texts of files whose pins go together, by name."""
    options = ["--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "--universal", "--python-version=3.11"]
    asked = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--index-url=https://pypi.org/simple", *options]
    done = subprocess.run([*asked, *map(str, files)], capture_output=True, text=True, check=True)
    hashes = hashes_by_pin(done.stdout)
    return {path.name: hashed(path.read_text(), path.name, hashes) for path in files}


def pins(text: str) -> dict[str, str]:
    """Versions by name, as a file of pins says them; names as PyPI compares them."""
    found = (match.groups() for line in text.splitlines() if (match := _PIN.match(line)))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def hashes_by_pin(compiled: str) -> dict[str, list[str]]:
    """The hashes of each pin ``name==version`` of a file that has both; names as PyPI compares them."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", compiled):
        for name, version in pins(block).items():
            found[f"{name}=={version}"] = re.findall(r"--hash=(sha256:[0-9a-f]{64})", block)
    return found


def hashed(text: str, name: str, hashes: Mapping[str, list[str]]) -> str:
    """The file ``name`` of pins, with the hashes of each; lines that include another file stay.

    Raises:
        KeyError: a pin has no hashes.
    """
    lines = [HEAD.format(name=name).rstrip()]
    for line in text.splitlines():
        if line.startswith("-r "):
            lines.append(line)
        for project, version in pins(line).items():
            own = sorted(hashes[f"{project}=={version}"])
            lines.append(" \\\n".join([line, *(f"    --hash={one}" for one in own)]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
