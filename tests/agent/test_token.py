"""The agent's token file: whose it may be, and who may read it."""

import os
from pathlib import Path

import pytest

from farside.agent.token import read_token
from farside.errors import ConfigError


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_token_file_of_another_user_is_refused_at_each_reading(tmp_path: Path) -> None:
    file = tmp_path / "agent.token"
    file.write_text("a-token\n")
    file.chmod(0o600)
    assert read_token(file) == "a-token"

    os.chown(file, 65534, -1)

    with pytest.raises(
        ConfigError, match=rf"token_file {file}: it belongs to uid 65534; write it anew as root, or chown"
    ):
        read_token(file)
