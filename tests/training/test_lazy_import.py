"""What `import farside` brings into a user's process."""

import subprocess
import sys

LOOK = """
import sys, threading
import farside
assert "torch" not in sys.modules
assert not [name for name in sys.modules if name.startswith("farside.")]
assert threading.active_count() == 1
try:
    farside.nothing
except AttributeError as error:
    print(error)
"""
LOOK_AT_TRAINING = """
import sys, threading
import farside.training.member, farside.training.static_plan, farside.training.exchange
assert "torch" not in sys.modules and "numpy" not in sys.modules
assert threading.active_count() == 1
import os
assert len(os.listdir("/proc/self/task")) == 1
"""


def test_importing_farside_imports_no_pytorch_and_starts_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)

    assert done.stdout == "module 'farside' has no attribute 'nothing'\n"


def test_a_members_session_needs_neither_pytorch_nor_numpy() -> None:
    subprocess.run([sys.executable, "-c", LOOK_AT_TRAINING], check=True)
