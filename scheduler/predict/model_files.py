"""Model files: LightGBM's text beside a JSON manifest, versioned. Never pickles.

How it works
  A folder has one manifest a service, ``qssf.json``, and the texts of its newest models, ``qssf-7.txt``. A text is
  written first, under a name of its own, then the manifest that names it, each by renaming a file that is whole and
  on the disk. So a reader finds the old model or the new one, whenever the writer is killed.

  The manifest has the text's size and SHA-256. A text that was cut short or changed is refused before LightGBM sees it,
  and so is a manifest of a format that this version does not know.

  A checksum that stands beside a text proves that it is whole, not who wrote it. So the folder and what is read of it
  must belong to the user who reads it, or to root, and must not be writable by everybody.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from farside.errors import ConfigError, FarsideError
from farside.scheduler.predict.service import ModelFacts, ModelRecord
from farside.whole_file import write_whole

FORMAT = 2  # 1: trees of run times themselves, without what the rolling estimate knows
KEPT = 3  # texts of a service, the newest; who reads the manifest now still finds the text that it named
MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(ModelFacts):
    """Manifest beside a model's text. ``version`` counts its fits."""

    format: int
    version: int
    text_file: str
    text_bytes: int
    text_sha256: str
    metrics: Mapping[str, float | None]


class ModelStore:
    """Model files in a folder, which is created at the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, record: ModelRecord) -> Manifest:
        """Write a model as the newest of its service; on failure the old files stay.

        Raises:
            FarsideError: It can't be written.
        """
        text = record.text.encode()
        try:
            self._make_folder()
            version = self._last_version(record.service) + 1
            name = f"{record.service}-{version}.txt"
            manifest = Manifest(
                format=FORMAT, version=version,
                text_file=name, text_bytes=len(text), text_sha256=hashlib.sha256(text).hexdigest(),
                metrics=record.metrics, **_facts(record),
            )  # fmt: skip
            told = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
            # The text before the manifest that names it, and old texts last: at each moment the manifest leads to a
            # text.
            write_whole(self.folder / name, text, mode=0o666)
            write_whole(self._manifest(record.service), told, mode=0o666)
            self._remove_old(record.service, version)
        except OSError as error:
            raise FarsideError(f"{self.folder}: {error.strerror}", hint="the model was not kept") from error
        return manifest

    def check(self) -> None:
        """Check before long training that the model can be written; creates no file.

        Raises:
            FarsideError: It will not.
        """
        try:
            place = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
            if place == self.folder:
                _check_owner(place, place.stat())
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise FarsideError(f"{self.folder}: {error.strerror}", hint="name a folder that can be written") from error

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _check_owner(self.folder, self.folder.stat())

    def load(self, service: str) -> ModelRecord:
        """The newest model of a service.

        Raises:
            ConfigError: There is none, or it is not whole, not of this format, or others could have written it.
        """
        path = self._manifest(service)
        if self.folder.exists():
            _check_owner(self.folder, self.folder.stat())
        manifest = _decoded(path, _read(path))
        if manifest.service != service:
            raise ConfigError(f"{path}: is of service '{manifest.service}', not {service}", hint="fit it again")
        # A manifest must not lead to a file elsewhere.
        if Path(manifest.text_file).name != manifest.text_file:
            raise ConfigError(f"{path}: text_file '{manifest.text_file}' is no name of a file", hint="fit it again")
        text = _read(self.folder / manifest.text_file)
        if len(text) != manifest.text_bytes:
            told = f"has {len(text)} bytes, not the {manifest.text_bytes} of its manifest"
            raise ConfigError(f"{self.folder / manifest.text_file}: {told}", hint="fit it again")
        if hashlib.sha256(text).hexdigest() != manifest.text_sha256:
            raise ConfigError(f"{self.folder / manifest.text_file}: is not what was written", hint="fit it again")
        return ModelRecord(
            text=_text(self.folder / manifest.text_file, text),
            metrics={name: value for name, value in manifest.metrics.items() if value is not None},
            **_facts(manifest),
        )

    def _manifest(self, service: str) -> Path:
        return self.folder / f"{service}.json"

    def _last_version(self, service: str) -> int:
        """Highest version among the existing texts, so that a broken manifest never causes an overwrite."""
        return max((version for version, _ in self._texts(service)), default=0)

    def _remove_old(self, service: str, version: int) -> None:
        for old, path in self._texts(service):
            if old <= version - KEPT:
                path.unlink(missing_ok=True)

    def _texts(self, service: str) -> list[tuple[int, Path]]:
        found = []
        for path in self.folder.glob(f"{service}-*.txt"):
            number = path.stem.removeprefix(f"{service}-")
            if number.isascii() and number.isdigit():
                found.append((int(number), path))
        return found


def _facts(of: ModelFacts) -> dict[str, Any]:
    return {each.name: getattr(of, each.name) for each in fields(ModelFacts)}


def _text(path: Path, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8", hint="fit it again") from error


def _decoded(path: Path, raw: bytes) -> Manifest:
    try:
        # The format first, so that another one is named as such, and not by the fields that it lacks.
        version = msgspec.json.decode(raw, type=_Version)
        if version.format != FORMAT:
            raise ConfigError(f"{path}: has format {version.format}; this version reads {FORMAT}", hint="fit it again")
        return msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="fit it again") from error


@dataclass(frozen=True, slots=True)
class _Version:
    format: int | Literal["unknown"] = "unknown"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # The open file, so that what is checked is what is read.
            found = os.fstat(file.fileno())
            _check_owner(path, found)
            if found.st_size > MOST_BYTES:
                raise ConfigError(f"{path}: is larger than any model", hint="fit it again")
            return file.read(MOST_BYTES)
    except NotADirectoryError as error:
        hint = "name the folder that `farside predict fit` wrote"
        raise ConfigError(f"{path.parent}: is no folder", hint=hint) from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="farside predict fit makes a model") from error


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path}: belongs to another user", hint="models are read from who runs this, and from root")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"{path}: everybody may write it", hint=f"chmod o-w {path}, when you know what is in it")
