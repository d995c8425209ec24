"""What holds for a page's state holds by RDMA over soft RoCE, too: donors late, lost, fenced and spoilt on the way."""

import pytest
from hypothesis import HealthCheck, settings

from tests.property.test_page_state import PageState

pytestmark = pytest.mark.usefixtures("lasting_rxe0")


class PageStateOverRdma(PageState):
    """The same with donors that are reached by queue pairs."""

    transport = "rdma"


# Each makes two dozen queue pairs, at 0.1 s and more in an emulated guest.
TestPageStateOverRdma = PageStateOverRdma.TestCase
TestPageStateOverRdma.settings = settings(
    max_examples=5,
    stateful_step_count=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
