"""Tables of settings in docs/operating.md, generated from the declarations.

python -m farside.config.document FILE    writes them anew, below the headings "### farside PROGRAM"
"""

import re
import sys
from pathlib import Path

from farside.config.convert import allowed, shown
from farside.config.load import kinds
from farside.config.settings import Declared, Setting, settings_of

_HEAD = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"


def with_tables(text: str) -> str:
    """The document with every program's table as the declarations have it.

    Raises:
        ValueError: A program has no heading, or no table below it.
    """
    for program, config in kinds().items():
        section = re.compile(rf"(^### farside {program}\n(?:(?!#|\|).*\n)*)(?:\|.*\n)+", re.MULTILINE)
        text, found = section.subn(r"\g<1>" + table_of(config).replace("\\", r"\\"), text)
        if found != 1:
            raise ValueError(f"'### farside {program}' with a table: found {found} times, must be there once")
    return text


def table_of(config: type[Declared]) -> str:
    """The table of one program in Markdown."""
    return _HEAD + "".join(map(_row, settings_of(config).values()))


def _row(setting: Setting) -> str:
    cells = (
        f"`{setting.name}`",
        shown(setting, setting.default) or "(empty)",
        allowed(setting) or setting.kind,
        setting.doc,
    )
    return f"| {' | '.join(cell.replace('|', 'or') for cell in cells)} |\n"


def main() -> None:
    """Writes the tables into the file that is named."""
    file = Path(sys.argv[1])
    file.write_text(with_tables(file.read_text()))


if __name__ == "__main__":
    main()
