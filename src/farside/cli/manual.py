"""Man pages and bash completion, generated from the command line for `make deb`.

python -m farside.cli.manual FOLDER    writes farside.1, farside-COMMAND.8, farside.toml.5 and completion/farside
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from farside.cli.app import app
from farside.config.convert import allowed, shown
from farside.config.settings import Setting, settings_of

# Commands of a machine's administrator are in section 8, commands for everybody in section 1.
_ADMINISTRATION = {
    "aggregator",
    "daemon",
    "blockdev",
    "swap",
    "doctor",
    "keygen",
    "admin",
    "config",
    "sandbox",
    "status",
}
_SETTINGS_PAGE = "farside.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page: ``name`` without its section."""

    name: str
    section: int
    text: str


def pages() -> Iterator[Page]:
    """All of them."""
    root = _root()
    visible = {name: command for name, command in root.commands.items() if not command.hidden}
    yield Page(name="farside", section=1, text=_overview(root, visible))
    for name, command in visible.items():
        yield Page(name=f"farside-{name}", section=_section(name), text=_command_page(name, command))
    yield Page(name=_SETTINGS_PAGE, section=5, text=_settings_page())


def completion() -> str:
    """A bash script that completes commands and options, otherwise file names, without starting Python."""
    table = "\n".join(
        f'    "{" ".join(path)}") words="{" ".join(words)}" ;;' for path, words in sorted(_words(_root(), ()))
    )
    return _COMPLETION.replace("@TABLE@", table)


def main() -> None:
    """Writes everything into the folder that is named."""
    folder = Path(sys.argv[1])
    (folder / "completion").mkdir(parents=True, exist_ok=True)
    for page in pages():
        (folder / f"{page.name}.{page.section}").write_text(page.text)
    (folder / "completion/farside").write_text(completion())


# --- man pages


def _overview(root: Any, commands: dict[str, Any]) -> str:
    parts = [
        _title("farside", 1, root.help),
        ".SH SYNOPSIS\n.B farside\n.I COMMAND\n[OPTIONS]",
        ".SH COMMANDS",
        *(
            f".TP\n.BR farside-{_plain(name)} ({_section(name)})\n{_text(_first_line(command.help))}"
            for name, command in sorted(commands.items())
        ),
        f".SH SERVICES\n.B {_plain('systemctl enable --now farside.target')}\n"
        + _text("brings up a node: donor, borrower and agent, none of which needs another."),
        ".SH EXIT STATUS\n0 when all is well, 1 for a failure, 2 for wrong arguments or settings.",
        ".SH FILES\n.TP\n.I /etc/farside\nSettings, donors and the cluster's key; see\n.BR farside.toml (5).",
    ]
    return "\n".join(parts) + "\n"


def _command_page(name: str, command: Any) -> str:
    see = f".SH SEE ALSO\n.BR farside (1),\n.BR {_SETTINGS_PAGE} (5)"
    parts = [_title(f"farside-{name}", _section(name), command.help), *_command(command, ("farside", name)), see]
    return "\n".join(parts) + "\n"


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    context = _context(command, path)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SH SYNOPSIS\n.B {_plain(' '.join(path))}\n{_text(usage)}"
    yield f".SH DESCRIPTION\n{_paragraphs(command.help or '')}"
    yield from _options(command, context)
    if command.epilog:
        yield f".SH NOTES\n{_paragraphs(command.epilog)}"
    yield from _subcommands(command, path)


def _subcommands(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    for name, child in _children(command):
        context = _context(child, (*path, name))
        usage = " ".join(child.collect_usage_pieces(context))
        yield f'.SH "{_plain(context.info_name or "")} {_plain(usage)}"\n{_paragraphs(child.help or "")}'
        yield from _options(child, context, level=".SS Options")
        yield from _subcommands(child, (*path, name))


def _options(command: Any, context: typer.Context, *, level: str = ".SH OPTIONS") -> Iterator[str]:
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context)) is not None]
    if records:
        yield level
    for names, meaning in records:
        yield f".TP\n.B {_plain(names)}\n{_text(meaning)}"


def _settings_page() -> str:
    from farside.config.load import kinds

    parts = [
        _title(_SETTINGS_PAGE, 5, f"settings of farside {', '.join(kinds())}"),
        ".SH DESCRIPTION\nTOML, in\n.I /etc/farside/PROGRAM.toml\nfor each program below.\nDrop-ins in\n"
        ".I /etc/farside/PROGRAM.d\nare read afterwards, in the order of their names.",
    ]
    for program, config in kinds().items():
        parts.append(f'.SH "farside {program}"')
        parts += [_setting(setting) for setting in settings_of(config).values()]
    parts.append(".SH SEE ALSO\n.BR farside-config (8)")
    return "\n".join(parts) + "\n"


def _setting(setting: Setting) -> str:
    default = shown(setting, setting.default) or "empty"
    limits = f"; {found}" if (found := allowed(setting)) else ""
    return f".TP\n.B {_plain(setting.name)}\n{_text(setting.doc)}.\n.br\n{_text(f'Default: {default}{limits}.')}"


def _title(name: str, section: int, help_text: str) -> str:
    line = _first_line(help_text).rstrip(".")
    return f'.TH {name.upper()} {section} "" Farside\n.SH NAME\n{_plain(name)} \\- {_text(line[:1].lower() + line[1:])}'


def _section(command: str) -> int:
    return 8 if command in _ADMINISTRATION else 1


def _first_line(text: str) -> str:
    return (text or "").strip().partition("\n\n")[0].replace("\n", " ")


def _paragraphs(text: str) -> str:
    parts = [part.replace("\n", " ").strip() for part in text.strip().split("\n\n")]
    return "\n.PP\n".join(_text(part) for part in parts if part)


def _plain(text: str) -> str:
    # Roff prints a bare - as a hyphen, which a shell does not take for the dash of an option.
    return text.replace("\\", "\\e").replace("-", "\\-")


def _text(text: str) -> str:
    """Text as roff takes it: a line of it that begins with a dot or an apostrophe would be a command."""
    return re.sub(r"^([.'])", r"\\&\1", _plain(text), flags=re.MULTILINE)


# --- completion


def _words(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """For each command, by its path: what may come next."""
    context = _context(command, path)
    children = _children(command)
    options = [name for one in command.get_params(context) if one.param_type_name == "option" for name in one.opts]
    yield path, [*(name for name, _ in children), *sorted(name for name in options if name.startswith("--"))]
    for name, child in children:
        yield from _words(child, (*path, name))


def _children(command: Any) -> list[tuple[str, Any]]:
    return sorted((name, child) for name, child in getattr(command, "commands", {}).items() if not child.hidden)


def _context(command: Any, path: tuple[str, ...]) -> typer.Context:
    return typer.Context(command, info_name=" ".join(path), help_option_names=["-h", "--help"])


def _root() -> Any:
    return typer.main.get_command(app)


_COMPLETION = """# bash completion of farside: made of its command line.
_farside() {
  local current="${COMP_WORDS[COMP_CWORD]}" path="" word words
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in -*) ;; *) _farside_words "${path:+$path }$word" >/dev/null && path="${path:+$path }$word" ;; esac
  done
  words=$(_farside_words "$path")
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [[ ${#COMPREPLY[@]} -gt 0 || $current == -* ]] || COMPREPLY=($(compgen -f -- "$current"))
}
_farside_words() {
  local words
  case "$1" in
@TABLE@
    *) return 1 ;;
  esac
  echo "$words"
}
complete -o filenames -F _farside farside
"""


if __name__ == "__main__":
    main()
