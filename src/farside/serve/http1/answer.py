"""Answers of HTTP/1.1. PURE."""

from collections.abc import Sequence
from http import HTTPStatus

import msgspec

# Lines of a head.
JSON = b"content-type: application/json\r\n"

_STATUS = {one.value: b"HTTP/1.1 %d %s\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus}


def written(status: int, fields: bytes, body: bytes, *, is_kept: bool, has_body: bool = True) -> bytes:
    """A whole answer.

    Args:
        status: Its status.
        fields: Lines of its head, each with its end.
        body: Its body.
        is_kept: Whether the connection stays open.
        has_body: Without, the length is told and nothing sent, as HEAD wants it.
    """
    return b"".join(answer_parts(status, fields, body, is_kept=is_kept, has_body=has_body))


def answer_parts(
    status: int, fields: bytes, body: bytes | memoryview, *, is_kept: bool, has_body: bool = True
) -> Sequence[bytes | memoryview]:
    """Head and body of an answer, for bodies that are better not copied."""
    close = b"" if is_kept else b"connection: close\r\n"
    head = b"%b%b%bcontent-length: %d\r\n\r\n" % (_STATUS[status], fields, close, len(body))
    return (head, body) if has_body else (head,)


def error_body(line: str) -> bytes:
    """The body of an error."""
    return msgspec.json.encode({"error": " ".join(line.split())[:500]})
