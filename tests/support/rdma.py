"""Where tests find an RDMA network: an address of this machine that an RDMA device stands behind."""

import pytest

from farside.errors import ConfigError
from farside.sandbox import files


def rdma_address() -> str:
    """The IPv4 address of an RDMA port; skips the test where there is none."""
    try:
        return files.rdma_address()
    except ConfigError as error:
        pytest.skip(f"{error} (guests of tests/vm have soft RoCE)")
