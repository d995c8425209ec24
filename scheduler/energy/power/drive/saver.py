"""What an idle node can save while it stays on: the knobs that a rest turns down, and turns back."""

from typing import Protocol


class Saver(Protocol):
    """A knob of this very machine. Both calls may be repeated: the second one changes nothing.

    Raises:
        Unavailable: This machine lacks it, or does not let us.
    """

    @property
    def name(self) -> str:
        """As logs call it."""
        ...

    def rest(self) -> None:
        """Turns it down, and remembers what it was."""
        ...

    def resume(self) -> None:
        """Turns it back to what it was."""
        ...
