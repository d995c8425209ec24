"""Jobs of the co-location simulator: drawn, or from a table of one's own. PURE."""

import csv
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from farside.errors import ConfigError
from farside.group_time import WorkProfile
from farside.scheduler.settings import suggestion

JOBS_MAX = 20_000
_GB = 10**9

# Application, data set, and GB of input and of the model [harmony Table I]. The text gives two sizes each for MLR and
# Lasso together.
APPLICATIONS = (
    ("nmf", "netflix64", 45.6, 1.0), ("nmf", "netflix128", 91.2, 5.0), ("lda", "pubmed", 4.3, 2.1),
    ("lda", "nytimes", 0.6, 1.1), ("mlr", "synthetic78", 78.4, 12.0), ("mlr", "synthetic155", 155.0, 24.0),
    ("lasso", "synthetic78", 78.4, 12.0), ("lasso", "synthetic155", 155.0, 24.0),
)  # fmt: skip
SETTINGS_EACH = 10
ASSUMED = (
    "The text does not have the jobs' times. Drawn: seconds on the network, log-normal, mean 5.5 (44.3 s for 8 jobs), "
    "sigma 0.8; computing by communicating at 16 machines, log-normal, median 1.04 (so that utilisation can be the "
    "text's), sigma 0.7; run time alone on 10 machines, log-normal, median 1,500 s, sigma 0.5. Input and model are "
    "Table I's; a tenth of the model and 1 GB stay in memory on each machine of 32 GB. Profiles are known when jobs "
    "are submitted. A job that changes its machines repeats 2 iterations."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJob:
    """One row: a job, and what one of its iterations needs.

    Attributes:
        job: Its name.
        app: Its application; a word.
        data: Its data set; a word.
        work_machine_s: Machine seconds of computing that its machines share.
        update_s: Seconds of computing that each machine repeats.
        net_s: Seconds on the network, with two or more machines.
        iterations: How many it needs.
        input_bytes: Its input, which its machines share.
        model_bytes: Its model.
        floor_bytes: Memory on each machine though all of its input lies on the disk.
        submit_s: When it is submitted.
    """

    job: str
    app: str = ""
    data: str = ""
    work_machine_s: float
    update_s: float = 0.0
    net_s: float
    iterations: int
    input_bytes: int = 0
    model_bytes: int = 0
    floor_bytes: int = 0
    submit_s: float = 0.0

    @property
    def profile(self) -> WorkProfile:
        """What one of its iterations needs. On one machine nothing crosses the network."""
        return WorkProfile(
            job=self.job, work_machine_s=self.work_machine_s, update_s=self.update_s, net_s=self.net_s,
            floor_bytes=self.floor_bytes, input_bytes=self.input_bytes,
        )  # fmt: skip


def drawn_jobs(rng: random.Random) -> list[TableJob]:
    """The paper's 80 jobs, as far as its text says what they are like: 4 applications, 2 data sets, 10 settings each.

    They are in a random order, all submitted at once.
    """
    found = list[TableJob]()
    for app, data, input_gb, model_gb in APPLICATIONS:
        for number in range(SETTINGS_EACH):
            net_s = rng.lognormvariate(math.log(5.5) - 0.8**2 / 2, 0.8)
            work_machine_s = 16 * net_s * rng.lognormvariate(math.log(1.04), 0.7)
            alone_s = rng.lognormvariate(math.log(1500), 0.5)
            found.append(
                TableJob(
                    job=f"{app}-{data}-{number}", app=app, data=data, work_machine_s=work_machine_s, net_s=net_s,
                    iterations=max(1, round(alone_s / (work_machine_s / 10 + net_s))),
                    input_bytes=round(input_gb * _GB), model_bytes=round(model_gb * _GB),
                    floor_bytes=round((model_gb / 10 + 1) * _GB),
                )
            )  # fmt: skip
    rng.shuffle(found)
    return found


def heaviest(jobs: Sequence[TableJob], what: str) -> list[TableJob]:
    """Three quarters of the jobs, those that compute or communicate most beside the other [harmony §V-D]."""
    ratio = sorted(jobs, key=lambda job: job.work_machine_s / job.net_s if job.net_s else math.inf)
    kept = len(jobs) - len(jobs) // 4
    names = {job.job for job in (ratio[-kept:] if what == "comp" else ratio[:kept])}
    return [job for job in jobs if job.job in names]


def arriving(jobs: Sequence[TableJob], mean_s: float, rng: random.Random) -> list[TableJob]:
    """The jobs submitted one after another by a Poisson process, the first at 0 s."""
    found, at_s = list[TableJob](), 0.0
    for job in jobs:
        found.append(replace(job, submit_s=at_s))
        at_s += rng.expovariate(1 / mean_s)
    return found


def mistaken(profile: WorkProfile, rng: random.Random, *, error: float, common_error: float) -> WorkProfile:
    """A profile as it is taken to be, with mistakes.

    Args:
        profile: The true one.
        rng: Chance.
        error: Each time is wrong by up to this share, to either side.
        common_error: By this share computing is taken to be longer, and communicating shorter.
    """

    def wrong(value: float, sign: float) -> float:
        return value * max(0.0, 1 + error * rng.uniform(-1, 1)) * max(0.0, 1 + sign * common_error)

    return replace(profile, work_machine_s=wrong(profile.work_machine_s, 1.0), net_s=wrong(profile.net_s, -1.0))


NUMBER_MAX = 1e15
"""The largest number of any column: far above the seconds and bytes of any job, with room to add them up."""
_TEXTS = ("job", "app", "data")
_COUNTS = ("iterations", "input_bytes", "model_bytes", "floor_bytes")
_NEEDED = ("job", "work_machine_s", "net_s", "iterations")
COLUMNS = tuple(one.name for one in fields(TableJob))


def read_table(lines: Iterable[str], name: str) -> list[TableJob]:
    """The jobs of a CSV file with a line of column names, in the order of their submission.

    Raises:
        ConfigError: It is none; names the line, as an editor counts it.
    """
    rows = csv.reader(lines)
    header = [column.strip() for column in next(rows, [])]
    for column in header:
        if column not in COLUMNS:
            raise ConfigError(f"{name}: no column is called '{column}'", hint=suggestion(column, COLUMNS, "columns"))
    if missing := [column for column in _NEEDED if column not in header]:
        raise ConfigError(f"{name}: no column {', '.join(missing)}", hint=f"a table has {', '.join(COLUMNS)}")
    if twice := next((column for column in header if header.count(column) > 1), None):
        raise ConfigError(f"{name}: two columns are called '{twice}'", hint="leave one out")
    found, seen = list[TableJob](), set[str]()
    for row in _filled(rows):
        number = rows.line_num
        if len(row) != len(header):
            raise ConfigError(f"{name}: line {number}: {len(row)} values", hint=f"there are {len(header)} columns")
        job = _job(dict(zip(header, map(str.strip, row), strict=True)), f"{name}: line {number}")
        if job.job in seen:
            raise ConfigError(f"{name}: line {number}: job '{job.job}' is there already", hint="give each its own name")
        seen.add(job.job)
        found.append(job)
        if len(found) > JOBS_MAX:
            raise ConfigError(f"{name}: more than {JOBS_MAX:,} jobs", hint="simulate fewer")
    if not found:
        raise ConfigError(f"{name}: no job is in it", hint=f"give a row a job: {', '.join(COLUMNS)}")
    return sorted(found, key=lambda job: job.submit_s)


def _filled(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    try:
        yield from (row for row in rows if any(cell.strip() for cell in row))
    except csv.Error as error:
        raise ConfigError(f"not a CSV table: {error}", hint="give rows with commas between values") from error


def _job(texts: dict[str, str], where: str) -> TableJob:
    values: dict[str, object] = {}
    for column, text in texts.items():
        if column in _TEXTS:
            if not text.isprintable() or (column == "job" and not 0 < len(text) <= 200):
                raise ConfigError(f"{where}: {column} '{text[:40]}'", hint="give a name of 1 to 200 characters")
            values[column] = text
            continue
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        least = 0.0 if column not in ("work_machine_s", "iterations") else math.ulp(0.0)
        if not least <= number <= NUMBER_MAX:
            wanted = "a number above 0" if least else "a number from 0"
            raise ConfigError(f"{where}: {column} is '{text[:40]}'", hint=f"give {wanted}, up to {NUMBER_MAX:g}")
        if column in _COUNTS and number != int(number):
            raise ConfigError(f"{where}: {column} is '{text[:40]}'", hint="give a whole number")
        values[column] = int(number) if column in _COUNTS else number
    return TableJob(**values)  # type: ignore[arg-type]
