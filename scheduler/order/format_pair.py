"""Two figures as text, with enough digits to see the difference. PURE."""

from collections.abc import Callable


def apart(first: float, second: float, form: Callable[[float], str], unit: str = " s") -> tuple[str, str]:
    """Both figures as ``form`` writes them, with more digits before ``unit`` if the texts were equal."""
    told = form(first), form(second)
    digits = 4
    while told[0] == told[1] and first != second and digits <= 17:
        told = f"{first:.{digits}g}{unit}", f"{second:.{digits}g}{unit}"
        digits += 1
    return told


def in_seconds(value: float) -> str:
    """Whole seconds."""
    return f"{value:.0f} s"


def earlier(seconds: float) -> str:
    """How much earlier something was: whole seconds, unless that is none."""
    return in_seconds(seconds) if seconds >= 1 else f"{seconds:.3g} s"
