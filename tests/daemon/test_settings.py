"""What a donor can be told, against what it listens to."""

from dataclasses import fields

import pytest

from farside.config import DaemonConfig
from tests.support.imports import SOURCE

SOURCES = "".join(path.read_text() for path in (SOURCE / "farside" / "daemon").glob("*.py"))


@pytest.mark.parametrize("name", [field.name for field in fields(DaemonConfig)])
def test_every_setting_of_a_donor_is_read_by_it(name: str) -> None:
    assert f"config.{name}" in SOURCES
