"""Names of generated jobs in the style of users: words, dates, and occasional typing errors. PURE."""

from dataclasses import dataclass

import numpy as np

MODELS = (
    "resnet50",
    "bert",
    "yolo",
    "unet",
    "gpt",
    "vit",
    "lstm",
    "wgan",
    "mobilenet",
    "transformer",
    "deeplab",
    "ppo",
)
TASKS = ("train", "finetune", "pretrain", "search", "eval", "distill")
DATA = ("imagenet", "coco", "wmt", "squad", "kitti", "librispeech", "ade", "faces", "reid", "ocr", "wiki", "sim")
_DAY_S = 86400
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What is odd about names.

    Attributes:
        dated: The share of recurring names that end in the day of the run.
        typos: The share of jobs in whose name one letter is wrong, missing or doubled.
    """

    dated: float = 0.0
    typos: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.dated <= 1 and 0 <= self.typos <= 1):
            raise ValueError("dated and typos must be from 0 to 1")


def recurring_name(naming: Naming, kind: int, gpus: int) -> str:
    """The name of a kind of job, a number: the same for the same number; a ``{day}`` in it stands for the day."""
    spread = kind * 2654435761 % (1 << 32)  # so that neighbouring numbers are not neighbouring words
    words = (TASKS[spread % 6], MODELS[spread // 6 % 12], DATA[spread // 72 % 12])
    day = "-{day}" if (spread >> 10) % 1000 < 1000 * naming.dated else ""
    return f"{'_'.join(words)}_v{kind % 97}_x{gpus}{day}"


def single_name(number: int) -> str:
    """A name that comes once, of a number that comes once."""
    letters = ""
    while number or not letters:
        number, at = divmod(number, 26)
        letters += _LETTERS[at]
    return f"try_{letters[::-1]}_{MODELS[len(letters) * 7 % 12]}"


def with_day(name: str, submit_s: float) -> str:
    """The name with the day of a submission in it, if it has a place for one."""
    if "{day}" not in name:
        return name
    return name.replace("{day}", str(np.datetime64(int(submit_s // _DAY_S), "D")))


def with_slip(name: str, number: int) -> str:
    """The name with one slip in it, of a kind and at a place that a number from 0 on decides."""
    at, kind = number % len(name), number // len(name) % 3
    if kind == 0:
        return name[:at] + name[at + 1 :] or name
    if kind == 1:
        return name[:at] + name[at] + name[at:]
    return name[:at] + _LETTERS[number // (3 * len(name)) % 26] + name[at + 1 :]
