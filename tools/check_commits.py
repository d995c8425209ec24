"""Checks the messages of new commits: part of `make lint`, or python -m tools.check_commits [ROOT].

A subject is `area: what it now does` in at most 60 characters; after a blank line the body says why, wrapped at 72.
Commits up to `BASE` are as they are: history is never rewritten.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BASE = "ffd43daa2e32fed03a687b1eb55f63e985ea6091"
SUBJECT_MAX, BODY_MAX = 60, 72
_SUBJECT = re.compile(r"[a-z0-9][a-z0-9_./-]*: \S")


def main() -> int:
    """Prints what is wrong, a line each; 1 if anything is."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    messages = new_messages(root, BASE)
    if messages is None:
        print("farside: commit messages are not checked, there is no git history here")
        return 0
    found = [f"{commit[:10]}: {problem}" for commit, message in messages for problem in problems(message)]
    print("\n".join(found) if found else f"farside: {len(messages)} new commit messages are as they should be")
    return bool(found)


def new_messages(root: Path, base: str) -> list[tuple[str, str]] | None:
    """Each commit after ``base`` with its message, merges left out; None where git or its history is missing."""
    git = ("git", "-C", str(root))
    try:
        # An exported tree inside of another repository is not that repository.
        top = _said(*git, "rev-parse", "--show-toplevel")
        if Path(top.strip()).resolve() != root.resolve():
            return None
        _said(*git, "cat-file", "-e", f"{base}^{{commit}}")  # a shallow clone does not have it
        told = _said(*git, "log", "--no-merges", "--format=%H%n%B%x00", f"{base}..HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None
    pairs = (one.strip("\n").partition("\n") for one in told.split("\0") if one.strip())
    return [(commit, message) for commit, _, message in pairs]


def problems(message: str) -> Iterator[str]:
    """What is wrong with a message, each in words."""
    subject, *rest = message.splitlines() or [""]
    shown = f"'{subject:.70}'"
    if not _SUBJECT.match(subject):
        yield f"{shown} does not begin with an area, as in `agent: say when a port is full`"
    if len(subject) > SUBJECT_MAX:
        yield f"{shown} has {len(subject)} characters; a subject has at most {SUBJECT_MAX}"
    if not any(line.strip() for line in rest):
        yield f"{shown} has no body; say why, in 2 to 6 lines"
    elif rest[0].strip():
        yield f"{shown} has no blank line after it"
    for line in rest:
        if len(line) > BODY_MAX and " " in line.strip():  # an address can't be wrapped
            yield f"{shown} has a line of {len(line)} characters in its body; wrap it at {BODY_MAX}"


def _said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
