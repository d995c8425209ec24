"""What measured figures are to reach: a row for each, met or missed, and the command's exit code by them."""

from benchmarks.figure import Figure, Row, Table

CAPTION = "To reach"
_MET, _MISSED = "met", "missed"


def at_least(what: str, reached: float, bar: float) -> Row:
    """A bar that a figure has to reach."""
    return what, f"at least {bar:,g}", f"{reached:,.4g}", _MET if reached >= bar else _MISSED


def at_most(what: str, reached: float, bar: float) -> Row:
    """A bar that a figure may not exceed."""
    return what, f"at most {bar:,g}", f"{reached:,.4g}", _MET if reached <= bar else _MISSED


def bars(*rows: Row) -> Table:
    """The table that ends a figure's."""
    return Table(caption=CAPTION, header=("what", "bar", "reached", "verdict"), rows=rows)


def missed(figure: Figure) -> list[str]:
    """What a figure does not reach."""
    return [
        f"{what}: {reached}, {bar}"
        for table in figure.tables
        if table.caption == CAPTION
        for what, bar, reached, verdict in table.rows
        if verdict == _MISSED
    ]
