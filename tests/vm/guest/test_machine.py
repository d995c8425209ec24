"""The guest itself is what the other tests take it for."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke


def test_the_kernel_is_debians() -> None:
    assert "debian" in os.uname().version.lower()


def test_systemd_is_in_charge_and_content() -> None:
    done = subprocess.run(["systemctl", "is-system-running"], capture_output=True, text=True, check=False)

    failed = subprocess.run(["systemctl", "--failed", "--no-legend"], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), failed.stdout) == ("running", "")


def test_nbd_and_soft_rdma_can_be_loaded() -> None:
    subprocess.run(["modprobe", "-a", "nbd", "rdma_rxe"], check=True)

    assert Path("/sys/module/nbd").is_dir()
    assert Path("/sys/module/rdma_rxe").is_dir()
