"""A part that keeps its size, and whose use nobody counts."""

from farside.agent.serving.partition.policy import Entry, Measured


class FixedPlace:
    """Made by the drivers whose parts are of one size, or keep the one that their process started with."""

    def __init__(self, part_pct: int, entry: Entry) -> None:
        self.part_pct, self.entry = part_pct, entry

    def resize(self, part_pct: int) -> bool:
        """Another size wants another part."""
        return part_pct == self.part_pct

    def hold(self, prepare_pct: int) -> bool:
        """Less for a time is another size, too."""
        return False

    def let_go(self) -> None:
        """Changes nothing: the part was not held."""

    def measured(self) -> Measured | None:
        """Nobody counts what it uses."""
        return None

    def close(self) -> None:
        """Nothing was made."""
