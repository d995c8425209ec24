"""Job names: which differ only by a date, and which are similar. PURE. [helios §4.2.2]

How it works
  A name's *form* has its dates, times, hashes and long numbers masked, so that tonight's run has the form of last
  night's. Short numbers stay: ``lr0.1`` and ``x8`` tell something of how long a job runs.

  Forms that resemble each other share a *bucket*: those whose normalised Levenshtein similarity to the bucket's first
  form is at least ``similarity``. Compared with the first only, a bucket can't drift from name to name.

  A form that nobody has seen is not compared with all others: from its three-character pieces the few with the lowest
  hashes are drawn, and only buckets whose first form has one of these in common are looked at, at most ``LISTED`` for
  each piece. Two forms that differ by a few typing errors nearly always share one. So the work for a name is bounded,
  whatever the history's length.
"""

import re
import zlib
from collections import deque

from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

UNKNOWN = -1
PIECES = 4  # of a form, by which it is found
LISTED = 32  # buckets by piece: the newest
LONGEST = 200  # characters of a form that are compared; what follows in longer names is a path or a command line

# Masked wherever they stand: dates with or without a time, times, ids in hexadecimal (with a digit and a letter), and
# numbers of four digits or more.
_VARIABLE = re.compile(
    r"(?:19|20)\d\d[-_./]?(?:1[0-2]|0?[1-9])[-_./]?(?:[12]\d|3[01]|0?[1-9])(?!\d)"
    r"(?:[-_t ]*\d{1,2}[-:_h]?\d\d(?:[-:_m]?\d\d)?)?"
    r"|(?<!\d)\d{1,2}[:]\d\d(?:[:]\d\d)?(?!\d)"
    r"|(?<![0-9a-z])(?=[0-9a-f-]*\d)(?=[0-9a-f-]*[a-f])[0-9a-f]{8,}(?:-[0-9a-f]{4,})*(?![0-9a-z])"
    r"|\d{4,}",
    re.ASCII,
)
_DIGIT = re.compile(r"\d", re.ASCII)


def form_of(name: str) -> str:
    """A name in lower case, with what changes from run to run masked by ``#``; empty for an empty one."""
    form = name.strip().lower()[:LONGEST]
    return _VARIABLE.sub("#", form) if _DIGIT.search(form) else form


class NameBuckets:
    """Buckets of names, numbered from 0 in the order in which they came.

    Args:
        similarity: From 0 to 1: how alike two forms must be, 1 less the edits by the length of the longer one. 1: only
            equal forms share a bucket.
    """

    def __init__(self, similarity: float) -> None:
        if not 0 < similarity <= 1:
            raise ValueError(f"similarity: must be above 0 and at most 1, is {similarity:g}")
        self.similarity = similarity
        self.firsts: list[str] = []  # the first form of each bucket
        self._bucket_of: dict[str, int] = {}
        self._listed: dict[int, deque[int]] = {}

    def __len__(self) -> int:
        return len(self.firsts)

    def find(self, form: str) -> int:
        """The bucket of a form, or that of the most similar first form; `UNKNOWN` when there is none, or no name."""
        if not form:
            return UNKNOWN
        known = self._bucket_of.get(form)
        if known is not None:
            return known
        return UNKNOWN if self.similarity == 1 else self._nearest(form, _pieces(form))

    def add(self, form: str) -> int:
        """The bucket of a form, which is from now on known; a new one if nothing resembles it. `UNKNOWN`: no name."""
        if not form:
            return UNKNOWN
        known = self._bucket_of.get(form)
        if known is not None:
            return known
        pieces = () if self.similarity == 1 else _pieces(form)
        bucket = self._nearest(form, pieces)
        if bucket == UNKNOWN:
            bucket = len(self.firsts)
            self.firsts.append(form)
            for piece in pieces:
                self._listed.setdefault(piece, deque(maxlen=LISTED)).append(bucket)
        self._bucket_of[form] = bucket
        return bucket

    def _nearest(self, form: str, pieces: tuple[int, ...]) -> int:
        listed = [self._listed[piece] for piece in pieces if piece in self._listed]
        candidates = sorted(set().union(*listed))  # of equally similar ones the oldest wins
        firsts = [self.firsts[bucket] for bucket in candidates]
        found = process.extractOne(form, firsts, scorer=Levenshtein.normalized_similarity, score_cutoff=self.similarity)
        return UNKNOWN if found is None else candidates[found[2]]


def _pieces(form: str) -> tuple[int, ...]:
    """The lowest hashes of its pieces of three characters; those of its ends have a mark in front or behind."""
    raw = f"\x02{form}\x03".encode(errors="replace")
    # crc32, as Python's own hash of text differs from process to process.
    hashes = {zlib.crc32(raw[at : at + 3]) for at in range(len(raw) - 2)}
    return tuple(sorted(hashes)[:PIECES])
