"""Views built from records: a field of the same name is copied. PURE."""

from typing import Any, TypeVar

from msgspec import Struct

View = TypeVar("View", bound=Struct)


def like(kind: type[View], record: object, **others: Any) -> View:
    """A view of a record. ``others``: its keys that the record has not, or not like this."""
    for name in kind.__struct_fields__:
        if name not in others:
            others[name] = getattr(record, name)
    return kind(**others)
