"""The peers file."""

from pathlib import Path

import pytest

from farside.blockdev.peers_file import DonorAddress, parse_peers, read_peers
from farside.errors import ConfigError


def test_donors_are_read_in_order() -> None:
    text = '[[donor]]\nnode="a"\ncontrol="tcp:h:1"\n[[donor]]\nnode="b"\ncontrol="unix:/x"\n'

    assert parse_peers(text, "f") == (
        DonorAddress(node="a", control="tcp:h:1"),
        DonorAddress(node="b", control="unix:/x"),
    )


def test_a_donor_that_belongs_to_another_node_is_trusted_as_that() -> None:
    text = '[[donor]]\nnode="a"\ncontrol="tcp:h:1"\nowner="n1"\n[[donor]]\nnode="b"\ncontrol="tcp:h:2"\n'

    assert [one.trusted_as for one in parse_peers(text, "f")] == ["n1", "b"]


def test_an_empty_file_is_a_device_without_donors() -> None:
    assert parse_peers("", "f") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[donor]", "f: "),
        ('[[donor]]\nnode="a"\n', "control"),
        ('[[donors]]\nnode="a"\n', "f: no such name: 'donors'; did you mean 'donor'?"),
        ('[[donor]]\nnode="a"\ncontrol="tcp:h:1"\n[[donor]]\nnode="b"\ncontroll="x"\n', "[[donor]] number 2: no such"),
        ('[[donor]]\nnode="a"\ncontrol="tcp:h:1"\nweight="x"\n', "'weight'; there is only node, control and owner"),
        ('donor = "a"\n', "$[...]"),
        ('[[donor]]\nnode="a"\ncontrol="tcp:h:1"\n' * 2, "named twice"),
        ('[[donor]]\nnode="a"\ncontrol="carrier-pigeon"\n', "peers file f: node 'a': control: 'carrier-pigeon' is no"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_peers(text, "f")

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.toml"):
        read_peers(tmp_path / "nope.toml")
