"""Objects of a JSON list, or of a file with one object after another, read one at a time.

How it works
  Text is read in pieces, and the decoder asked for the object that the text in hand begins with. If it has none, either
  the rest is still to come, or the file is broken; which of the two shows when there is more text, so the piece in hand
  is doubled, up to what no entry of a job log needs.
"""

import json
from collections.abc import Iterator

from farside.errors import ConfigError
from farside.scheduler.sim.trace.format.source import Source

MAX_ENTRY = 1 << 24  # characters of one object: a job with ten thousand attempts on a hundred nodes each

_CHUNK = 1 << 16
_BETWEEN = " \t\r\n,"


def read_objects(source: Source) -> Iterator[tuple[int, object]]:
    """The line on which an entry of the list begins, and the entry.

    Raises:
        ConfigError: It is no JSON, or breaks off.
    """
    chunks = source.chunks(_CHUNK)
    decode = json.JSONDecoder().raw_decode
    text, at, line, is_at_end = next(chunks), 0, max(1, source.first_line), False
    lists = 0
    while True:
        at, lines, depth = _next_entry(text, at)
        line, lists = line + lines, lists + depth
        if at < len(text):
            try:
                entry, end = decode(text, at)
            except RecursionError:
                raise ConfigError(f"{source.path}, line {line}: lists within lists", hint=_NO_LOG) from None
            except ValueError as error:
                if is_at_end or len(text) - at > MAX_ENTRY:
                    raise _no_json(source, line, text, at, error) from None
            else:
                # A number could go on in the next piece of text; an object ends where it ends.
                if isinstance(entry, dict | list | str) or is_at_end or end < len(text):
                    yield line, entry
                    line += text.count("\n", at, end)
                    at = end
                    continue
        elif is_at_end:
            break
        text, at = text[at:], 0
        # As much again as is in hand: reading an object takes linear time in all, however long it is.
        wanted, more = max(len(text), _CHUNK), []
        while wanted > 0 and (chunk := next(chunks, "")):
            more.append(chunk)
            wanted -= len(chunk)
        is_at_end = wanted > 0
        text += "".join(more)
    if lists > 0:
        raise ConfigError(f"{source.path}, line {line}: the list does not end", hint="copy the file again")


_NO_LOG = "is this Philly's cluster_job_log, and all of it?"


def _no_json(source: Source, line: int, text: str, at: int, error: ValueError) -> ConfigError:
    if isinstance(error, json.JSONDecodeError):
        line += text.count("\n", at, error.pos)
        return ConfigError(f"{source.path}, line {line}: is not JSON: {error.msg}", hint=_NO_LOG)
    # The only other thing that the decoder refuses is a number with more digits than Python converts.
    return ConfigError(
        f"{source.path}, line {line}: a number of thousands of digits", hint="no job has such; is the file damaged?"
    )


def _next_entry(text: str, at: int) -> tuple[int, int, int]:
    """Where the next entry begins; the line ends before it; how many lists begin there, less those that end."""
    lines = depth = 0
    while at < len(text):
        character = text[at]
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "\n":
            lines += 1
        elif character not in _BETWEEN:
            break
        at += 1
    return at, lines, depth
