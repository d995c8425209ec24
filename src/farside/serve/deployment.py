"""A deployment's file, serving.toml: which models are served, within which SLOs, where, on what.

Whatever is wrong with it ends the program before anything starts, in one line: what, where, what to do.
"""

import difflib
import itertools
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from farside.agent.serving.describe import ModelRequest
from farside.agent.serving.life import PREPARE_S, PREPARE_S_MAX
from farside.agent.serving.model_file import FRAMEWORKS, MAX_BATCH
from farside.agent.serving.partition.catalog import AUTO, DRIVERS, NOT_SERVED, ON_CORES, ON_GPU
from farside.agent.serving.partition.cpu import CAPACITY_PCT, CAPACITY_PCT_MIN, PREPARE_PCT_MIN
from farside.agent.serving.partition.green import FRAMEWORK as GREEN_FRAMEWORK
from farside.endpoint import exclude, is_near, parse_address, socket_path
from farside.errors import ConfigError
from farside.scheduler.sharing.glet.profile import WHOLE_PCT, DeviceProfile, Interference, Load, ModelProfile
from farside.serve.lease.terms import KEYS, LeaseTerms, check_terms
from farside.serve.scenario import RATE_MAX

FILE = "serving.toml"
MODELS_MAX = 256
SLO_MS_MAX = 600_000.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_BATCH_DEFAULT = 32
_MISSING = "Object missing required field "
KindT = TypeVar("KindT")
NAME_HINT = "use letters, digits, dots, dashes; 64 at most"
GPU_DRIVERS = ON_GPU - NOT_SERVED.keys()
_DRIVERS = (AUTO, *sorted(ON_CORES), *sorted(GPU_DRIVERS))
# Those that give a part another size under its executor hold one to less while it loads; `auto` may be one of them.
_HOLDING = (AUTO, *(name for name, driver in DRIVERS.items() if driver.traits.can_resize))


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    """A table [model.NAME]."""

    file: str
    slo_ms: float
    rate: float = 0.0
    max_batch: int | msgspec.UnsetType = msgspec.UNSET
    max_shape: dict[str, tuple[int, ...]] = {}


class _File(LeaseTerms, frozen=True, kw_only=True):
    """All of serving.toml."""

    model: dict[str, _Model]
    name: str = "serving"
    http_listen: str = "tcp:127.0.0.1:8000"
    grpc_listen: str = "tcp:127.0.0.1:8001"
    metrics_listen: str = "tcp:127.0.0.1:8002"
    admin_socket: str = ""
    device: str = "auto"
    cpu_devices: tuple[tuple[int, ...], ...] = ()
    capacity_pct: int = CAPACITY_PCT
    gpus_max: int = 0
    profile: str = ""
    prepare_s: float = PREPARE_S
    prepare_pct: int = WHOLE_PCT
    plain_http: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model of a deployment; ``rate`` is expected at the start, requests a second."""

    name: str
    path: Path
    slo_ms: float
    rate: float
    max_batch: int
    max_shape: Mapping[str, tuple[int, ...]]

    @property
    def request(self) -> ModelRequest:
        """What has to be found out of its file."""
        return ModelRequest(name=self.name, path=str(self.path), max_batch=self.max_batch, max_shape=self.max_shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A deployment file that is sound in itself.

    Addresses are HOST:PORT, empty where a door stays shut. ``profile`` is None where none is named. ``driver`` is auto,
    cpu, whole, mps, green or gpu; ``cpu_devices`` are the cores of each device, empty: all cores are one. ``gpus_max``
    is 0 where all devices may be used. ``terms`` are of leases, and ``of_a_cluster`` those of their keys that the file
    has.
    """

    file: Path
    name: str
    models: Mapping[str, ServedModel]
    http: str
    grpc: str
    metrics: str
    admin_socket: Path
    driver: str
    cpu_devices: tuple[tuple[int, ...], ...]
    capacity_pct: int
    gpus_max: int
    profile: Path | None
    prepare_s: float
    prepare_pct: int
    tls_cert: Path
    tls_key: Path
    tokens: tuple[str, ...]
    terms: LeaseTerms
    of_a_cluster: tuple[str, ...]

    @property
    def rates(self) -> dict[str, float]:
        """Requests a second that the file expects, by model."""
        return {name: model.rate for name, model in self.models.items()}

    @property
    def is_secure(self) -> bool:
        """Whether the doors speak TLS."""
        return self.tls_cert.is_absolute()

    @property
    def is_on_gpus(self) -> bool:
        """Whether its devices are GPUs."""
        return self.driver in GPU_DRIVERS

    def requests(self) -> tuple[ModelRequest, ...]:
        """What has to be found out of each model file, by name."""
        return tuple(one.request for one in self.models.values())


def read_deployment(place: Path, state_folder: Path | None) -> Deployment:
    """The deployment of a folder, or of a file.

    Args:
        place: A folder with serving.toml, or such a file; paths in it are relative to its folder.
        state_folder: Where the admin socket is by default; None: the file has to name it.

    Raises:
        ConfigError: It can't be read, or something in it is wrong.
    """
    path = place / FILE if place.is_dir() else place
    said, file = _read(path)
    return _Checked(path.absolute(), file, [key for key in KEYS if key in said]).deployment(state_folder)


def read_models(folder: Path, max_batch: int) -> Mapping[str, ServedModel]:
    """The models of a folder's serving.toml, empty where it has none.

    Nothing else that serving needs has to be there: neither the profile, which is made of these models, nor tokens.

    Args:
        folder: Paths in the file are relative to it.
        max_batch: Of those models for which the file has none.

    Raises:
        ConfigError: It can't be read, has a key that is no setting, or a model in it is wrong.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        return {}
    return _Checked(path.absolute(), _read(path)[1], (), max_batch).models()


def _read(path: Path) -> tuple[Mapping[str, object], _File]:
    """Parses a deployment file: its keys as TOML has them, and the same as settings."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=f"name a folder with {FILE}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no TOML file ({error})", hint="docs/serving.md has an example") from error
    _check_keys(path, said)
    # One by one first: the library does not say which of several tables is wrong.
    for name, table in _tables_of(said, "model"):
        for tensor, shape in _tables_of(table, "max_shape"):
            _converted(path, shape, tuple[int, ...], f"model.{name}.max_shape.{tensor}")
        _converted(path, table, _Model, f"model.{name}")
    return said, _converted(path, said, _File, "")


def _check_keys(path: Path, said: Mapping[str, object]) -> None:
    known = [field.name for field in msgspec.structs.fields(_File)]
    for key in said:
        if key not in known:
            raise ConfigError(f"{path}: {key} is no setting", hint=_nearest(key, known))
    for name, table in _tables_of(said, "model"):
        fields = [field.name for field in msgspec.structs.fields(_Model)]
        for key in table if isinstance(table, dict) else ():
            if key not in fields:
                raise ConfigError(f"{path}: model.{name}.{key} is no setting", hint=_nearest(key, fields))


def _nearest(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _tables_of(said: object, key: str) -> Iterable[tuple[str, object]]:
    """What a table has in the table of this key, if both are some."""
    table = said.get(key) if isinstance(said, dict) else None
    return table.items() if isinstance(table, dict) else ()


def _converted(path: Path, said: object, kind: type[KindT], name: str) -> KindT:
    """What a file says, as settings; ``name``: of the table or setting that this is, empty: it is the whole file."""
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_where(error, name)}", hint="docs/serving.md has an example") from error


def _where(error: msgspec.ValidationError, name: str) -> str:
    """`Expected `int`, got `str` - at `$.gpus_max`` as a sentence that names the setting first."""
    text, _, place = str(error).partition(" - at `$")
    where = f"{name}{place.strip('`')}".lstrip(".")
    if text.startswith(_MISSING):
        return f"{where}.{text.removeprefix(_MISSING)} is missing".lstrip(".").replace("`", "")
    return f"{where or 'the file'}: {text[:1].lower()}{text[1:]}".replace("`", "")


class _Checked:
    """Checks that need more than types."""

    def __init__(
        self, path: Path, file: _File, of_a_cluster: Sequence[str], max_batch: int = MAX_BATCH_DEFAULT
    ) -> None:
        self._max_batch = max_batch
        self._path, self._folder, self._file, self._of_a_cluster = path, path.parent, file, of_a_cluster

    def deployment(self, state_folder: Path | None) -> Deployment:
        """The deployment.

        Raises:
            ConfigError: Something is wrong.
        """
        file = self._file
        if not NAME.fullmatch(file.name):
            raise self._wrong(f"name = {file.name!r} is no name", NAME_HINT)
        self._check_numbers()
        secure = bool(file.tls_cert or file.tls_key)
        if secure and not (file.tls_cert and file.tls_key):
            raise self._wrong("tls_cert and tls_key go together", "name both, or neither")
        doors = {
            "http_listen": self._address("http_listen", file.http_listen, is_secure=secure),
            "grpc_listen": self._address("grpc_listen", file.grpc_listen, is_secure=secure),
            "metrics_listen": self._address("metrics_listen", file.metrics_listen, is_secure=False),
        }
        self._check_apart(doors)
        if not doors["http_listen"] and not doors["grpc_listen"]:
            raise self._wrong("http_listen and grpc_listen are both empty, so no request can come", "open one of them")
        return Deployment(
            file=self._path,
            name=file.name,
            models=self.models(),
            http=doors["http_listen"],
            grpc=doors["grpc_listen"],
            metrics=doors["metrics_listen"],
            admin_socket=self._admin_socket(state_folder),
            driver=file.device,
            cpu_devices=file.cpu_devices,
            capacity_pct=file.capacity_pct,
            gpus_max=file.gpus_max,
            profile=self._in_folder(file.profile) if file.profile else None,
            prepare_s=file.prepare_s,
            prepare_pct=file.prepare_pct,
            tls_cert=self._in_folder(file.tls_cert) if secure else Path(),
            tls_key=self._in_folder(file.tls_key) if secure else Path(),
            tokens=self._tokens(),
            terms=LeaseTerms(**{key: getattr(file, key) for key in KEYS}),
            of_a_cluster=tuple(self._of_a_cluster),
        )

    def models(self) -> Mapping[str, ServedModel]:
        """Its models by name.

        Raises:
            ConfigError: There are too few or too many, or one is wrong.
        """
        models = self._file.model
        if not 1 <= len(models) <= MODELS_MAX:
            raise self._wrong(f"has {len(models)} models", f"name 1 to {MODELS_MAX}, each in a table [model.NAME]")
        return {name: self._model(name, one) for name, one in sorted(models.items())}

    def _admin_socket(self, state_folder: Path | None) -> Path:
        if self._file.admin_socket:
            return self._free_for_a_socket(self._in_folder(self._file.admin_socket))
        if state_folder is None:
            raise self._wrong(
                "names no admin_socket, and there is no XDG_RUNTIME_DIR, a folder that is this user's alone",
                'such as admin_socket = "admin.sock", beside this file',
            )
        return self._free_for_a_socket(state_folder / f"{self._file.name}.sock")

    def _free_for_a_socket(self, path: Path) -> Path:
        """The path, if a socket can be there, as far as that is known before one is made."""
        try:
            socket_path(str(path))
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise self._wrong(f"admin_socket {path}: a file that is no socket is there", "name another path")
        except ValueError as error:
            raise self._wrong(f"admin_socket: {error}", "") from error
        except (FileNotFoundError, PermissionError):  # its folder is made; others may ask for the status
            pass
        except OSError as error:
            raise self._wrong(f"admin_socket {path}: {error.strerror}", "name another path") from error
        return path

    def _check_numbers(self) -> None:
        file = self._file
        if file.device in NOT_SERVED:
            why, hint = NOT_SERVED[file.device]
            raise self._wrong(f"device = {file.device!r}: {why}", hint)
        if file.device not in _DRIVERS:
            raise self._wrong(f"device = {file.device!r} is no device", f"use {', '.join(_DRIVERS)}")
        for name, given, default, drivers, why in (
            ("capacity_pct", file.capacity_pct, CAPACITY_PCT, ("auto", "cpu"), "cuts no cores"),
            ("prepare_pct", file.prepare_pct, WHOLE_PCT, _HOLDING, "holds no executor to a part"),
        ):
            if file.device not in drivers and given != default:
                raise self._wrong(f"{name} = {given}: device = {file.device!r} {why}", "take it out")
        if file.device in GPU_DRIVERS and file.cpu_devices:
            raise self._wrong(f"cpu_devices are cores, and device = {file.device!r} has GPUs", "take them out")
        cores = [core for device in file.cpu_devices for core in device]
        if any(not device for device in file.cpu_devices) or len(set(cores)) < len(cores) or min(cores, default=0) < 0:
            raise self._wrong("cpu_devices has an empty device or a core twice", "such as [[0], [1]]")
        for name, value, low, high in (
            ("gpus_max", file.gpus_max, 0, 256),
            ("capacity_pct", file.capacity_pct, CAPACITY_PCT_MIN, 100),
            ("prepare_s", file.prepare_s, 1, PREPARE_S_MAX),
            ("prepare_pct", file.prepare_pct, PREPARE_PCT_MIN, WHOLE_PCT),
        ):
            if not low <= value <= high:
                raise self._wrong(f"{name} = {value} is out of bounds", f"give {low} to {high}")

    def _model(self, name: str, one: _Model) -> ServedModel:
        where = f"model.{name}"
        if not NAME.fullmatch(name):
            raise self._wrong(f"{where} is no name of a model", NAME_HINT)
        if not (0 < one.slo_ms <= SLO_MS_MAX):
            raise self._wrong(f"{where}.slo_ms = {one.slo_ms} is out of bounds", f"give up to {SLO_MS_MAX:.0f} ms")
        if not (0 <= one.rate <= RATE_MAX and math.isfinite(one.rate)):
            raise self._wrong(f"{where}.rate = {one.rate} is no rate", f"give requests a second, 0 to {RATE_MAX:,.0f}")
        max_batch = one.max_batch if isinstance(one.max_batch, int) else self._max_batch
        if not 1 <= max_batch <= MAX_BATCH:
            raise self._wrong(f"{where}.max_batch = {max_batch} is out of bounds", f"give 1 to {MAX_BATCH}")
        path = self._in_folder(one.file)
        if not path.is_file():
            raise self._wrong(f"{where}.file = {one.file!r}: {path} is no file", "name a model file")
        if self._file.device == "green" and FRAMEWORKS.get(path.suffix) != GREEN_FRAMEWORK:
            raise self._wrong(
                f"{where}.file = {one.file!r}: device = 'green' serves TorchScript files alone",
                "use mps, or a file that ends with .pt",
            )
        return ServedModel(
            name=name, path=path, slo_ms=one.slo_ms, rate=one.rate, max_batch=max_batch, max_shape=one.max_shape
        )

    def _address(self, setting: str, text: str, *, is_secure: bool) -> str:
        """HOST:PORT; empty where the text is."""
        if not text:
            return ""
        address = text.removeprefix("tcp:")
        try:
            host, _ = parse_address(address)
        except ValueError as error:
            raise self._wrong(f"{setting} = {text!r} is no address", "write tcp:HOST:PORT, or nothing") from error
        if not is_near(host) and not is_secure and not self._file.plain_http:
            raise self._wrong(
                f"{setting} = {text!r} lets others in without TLS",
                "name tls_cert and tls_key, or say plain_http = true where the network is trusted"
                if setting != "metrics_listen"
                else "metrics have no TLS: use a loopback address, or say plain_http = true",
            )
        return address

    def _check_apart(self, doors: Mapping[str, str]) -> None:
        for (setting, address), (other, other_address) in itertools.combinations(doors.items(), 2):
            if address and other_address and exclude(address, other_address):
                raise self._wrong(
                    f"{setting} = 'tcp:{address}' and {other} = 'tcp:{other_address}' can't both listen",
                    "give one of them another port",
                )

    def _tokens(self) -> tuple[str, ...]:
        if not self._file.token_file:
            return ()
        path = self._in_folder(self._file.token_file)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise self._wrong(f"token_file {path}: can't be read", "name a file of tokens") from error
        if path.stat().st_mode & 0o007:
            raise self._wrong(f"token_file {path}: all users may read it", f"chmod o= {path}")
        tokens = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
        if not tokens:
            raise self._wrong(f"token_file {path}: has no token", "write a token a line")
        return tokens

    def _in_folder(self, text: str) -> Path:
        return self._folder / text

    def _wrong(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._path}: {what}", hint=hint)


def check_for_machine(deployment: Deployment) -> None:
    """Whether a deployment can be served on this machine.

    Raises:
        ConfigError: Its file has a key that only leases have.
    """
    if deployment.of_a_cluster:
        raise ConfigError(
            f"{deployment.file}: {deployment.of_a_cluster[0]} is of a deployment on a manager's nodes; here models run "
            "on this machine",
            hint="take it out, or name a manager by --manager",
        )


def check_for_manager(deployment: Deployment) -> None:
    """Whether a deployment can be served on a manager's nodes.

    Raises:
        ConfigError: Its file lacks what leases need, or says of them what can't be.
    """
    needs_cores = not deployment.is_on_gpus and not deployment.cpu_devices
    for is_wrong, what, hint in (
        (
            deployment.driver == "auto",
            "device = 'auto': on a manager's nodes it has to be named",
            "device = 'cpu' serves on CPU cores in place of declared GPUs; 'mps', 'green' and 'gpu' on the GPUs",
        ),
        (needs_cores, "names no cpu_devices", "such as cpu_devices = [[0], [1]]: the nodes' cores"),
        (not deployment.gpus_max, "names no gpus_max", "give the number of GPUs that may be leased at most"),
        (not deployment.terms.key_file, "names no key_file", "`farside keygen FILE` makes one, for front and workers"),
    ):
        if is_wrong:
            raise ConfigError(f"{deployment.file}: {what}", hint=hint)
    check_terms(deployment.file, deployment.terms)


def check_slos(deployment: Deployment, profiles: Mapping[str, ModelProfile]) -> None:
    """Whether each model's SLO can be met by a batch of one, on the best part that was profiled.

    Raises:
        ConfigError: One can't, with the shortest that can.
    """
    for name, model in deployment.models.items():
        shortest_ms = profiles[name].shortest_slo_ms
        if model.slo_ms < shortest_ms:
            raise ConfigError(
                f"{deployment.file}: model.{name}.slo_ms = {model.slo_ms:g} can never be met",
                hint=f"it needs at least {math.ceil(10 * shortest_ms) / 10:g} ms: a cycle and a batch of one",
            )


class _Bounded:
    """Interference of models whose largest batch is smaller than the profile's."""

    def __init__(self, of: Interference, most: Mapping[str, int]) -> None:
        self._of, self._most = of, most

    def pressure(self, part_pct: int, loads: Sequence[Load]) -> object:
        """As it was measured."""
        return self._of.pressure(part_pct, loads)

    def factors(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """As it was measured, of the batches that are served."""
        return self._of.factors(model, part_pct, pressure)[: self._most[model]]

    def least(self, model: str, part_pct: int, batches: int) -> Sequence[float]:
        """As it was measured."""
        return self._of.least(model, part_pct, batches)


def profiles_of(
    deployment: Deployment, folder: Path, models: Mapping[str, ModelProfile], device: DeviceProfile
) -> tuple[dict[str, ModelProfile], DeviceProfile]:
    """The deployment's models as the profile of a folder has them, with their SLOs and largest batches.

    Raises:
        ConfigError: A model has no profile, or none of its largest batch, or an SLO can never be met.
    """
    found: dict[str, ModelProfile] = {}
    for name, model in deployment.models.items():
        profile = models.get(name)
        if profile is None:
            raise ConfigError(
                f"{deployment.file}: model.{name} has no profile in {folder}",
                hint=f"there are {', '.join(sorted(models))}; profile it: farside serve profile",
            )
        if profile.max_batch < model.max_batch:
            raise ConfigError(
                f"{deployment.file}: model.{name}.max_batch = {model.max_batch} was not profiled",
                hint=f"{folder} has batches up to {profile.max_batch}: give that, or profile it anew",
            )
        found[name] = replace(
            profile,
            slo_ms=model.slo_ms,
            latency_ms={part: times[: model.max_batch] for part, times in profile.latency_ms.items()},
            slowed_ms={part: times[: model.max_batch] for part, times in profile.slowed_ms.items()},
        )
    check_slos(deployment, found)
    most = {name: model.max_batch for name, model in deployment.models.items()}
    return found, replace(device, interference=_Bounded(device.interference, most))
