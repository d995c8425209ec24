"""Who imports what, read from the sources without running them."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from farside.cli.imports import without_garbage_collection

SOURCE = Path(__file__).parents[2] / "src"


@cache
def modules() -> Mapping[str, Path]:
    """Every module of farside by name, found through the links of src/farside."""
    found = {}
    for path in sorted(_walk(SOURCE / "farside")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _walk(folder: Path) -> Iterator[Path]:
    # Path.rglob does not follow links to folders in Python 3.11 and 3.12 alike; this does.
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _walk(entry)
        elif entry.suffix == ".py":
            yield entry


def tree(name: str) -> ast.Module:
    """The parsed source of a module."""
    return _trees()[name]


@cache
def _trees() -> Mapping[str, ast.Module]:
    # Millions of nodes, which stay: looks for garbage among them would take four times as long as parsing.
    with without_garbage_collection():
        return {name: ast.parse(path.read_text()) for name, path in modules().items()}


def imported_at_start(name: str) -> set[str]:
    """Modules that importing this one runs: not those inside functions, nor those for type checkers only."""
    return set(_imports(_statements_at_start(tree(name).body)))


@cache
def imported_anywhere(name: str) -> set[str]:
    """Modules that this one names in any import, also inside functions."""
    return set(_imports(ast.walk(tree(name))))


def _statements_at_start(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _statements_at_start(getattr(statement, part, []))


def _imports(nodes: Iterator[ast.AST] | Iterator[ast.stmt]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports are banned"
            for alias in node.names:
                # `from farside.daemon import messages` imports a module, `from farside.errors import X` a name of one
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module
