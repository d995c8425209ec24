"""Takes docs/page-*.png: `make screenshots`. A sandbox with real jobs, a headless Chromium, three looks at the page.

Needs the package chromium and what requirements/dev.txt has. The pictures are small on purpose: palette PNGs, a screen
each.
"""

import io
import os
import shutil
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbd
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from farside.client.manager_client import ManagerClient, find_manager
from farside.sandbox.session import Session, open_sandbox
from farside.scheduler.manager.auth.token_file import Role, add_token

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs"
ARGUMENTS = ("--cluster", "4x8", "--donors", "4", "--donor-memory", "192MiB", "--size", "256MiB")
DEADLINE_S = 90.0
STAGE = """
at=$(cat $FARSIDE_CHECKPOINT_DIR/$RANK 2>/dev/null || echo 0)
trap 'echo $at > $FARSIDE_CHECKPOINT_DIR/$RANK; exit 0' TERM
while [ $at -lt 6000 ]; do sleep 0.1 & wait $! 2>/dev/null; at=$((at + 1)); done
"""
JOBS: tuple[Mapping[str, Any], ...] = (
    {"name": "llama-8b-sft", "gpus": 16, "checkpoint": True},
    {"name": "resnet50-imagenet", "gpus": 8, "checkpoint": True},
    {"name": "tokenise-c4", "gpus": 1, "argv": ["true"]},
    {"name": "whisper-eval", "gpus": 4},
    {"name": "lr-sweep", "gpus": 2, "count": 3},
    {"name": "bad-import", "gpus": 1, "argv": ["false"]},
    {"name": "vit-huge-pretrain", "gpus": 24},
    {"name": "dpo-13b", "gpus": 8},
    {"name": "nightly-eval", "gpus": 4, "hold": True},
)


def main() -> int:
    """Takes them all."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("farside: no chromium; apt-get install chromium", file=sys.stderr)
        return 1
    with open_sandbox(ARGUMENTS) as session, sync_playwright() as playwright:
        _borrow(session)
        client = ManagerClient(find_manager(None, session.state))
        ids = _submit(client, session)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        where, token = _way_in(session)
        _shoot(browser, "page-overview", where, token, "#/", width=1280, height=1000)
        _shoot(browser, "page-job", where, token, f"#/jobs/{ids['llama-8b-sft']}", width=1280, height=900, dark=True)
        _shoot(browser, "page-phone", where, token, "#/", width=390, height=844, dark=True)
        browser.close()
    return 0


def _borrow(session: Session) -> None:
    """Writes to the sandbox's device, so that its donors lend."""
    handle = nbd.NBD()
    handle.connect_uri(session.uri)
    for offset in range(0, 160 << 20, 1 << 20):
        handle.pwrite(os.urandom(1 << 20), offset)
    handle.flush()
    handle.shutdown()


def _submit(client: ManagerClient, session: Session) -> dict[str, str]:
    ids: dict[str, str] = {}
    folder = session.state / "checkpoints"
    for job in JOBS:
        body = {"argv": ["sh", "-c", STAGE], "cwd": str(session.state), **job}
        if body.pop("checkpoint", False):
            (folder / str(job["name"])).mkdir(parents=True)
            body["checkpoint_dir"] = str(folder / str(job["name"]))
        ids[str(job["name"])] = client.post("jobs", body={"output": "/dev/null", **body})["ids"][0]
    end_s = time.monotonic() + DEADLINE_S
    while client.get("jobs", ids["bad-import"])["state"] != "failed" and time.monotonic() < end_s:
        time.sleep(0.2)
    time.sleep(12)  # so that there is something to see of their lives: preemptions come after five seconds
    return ids


def _way_in(session: Session) -> tuple[str, str]:
    folder = session.state / "manager"
    settings = tomllib.loads(next(folder.glob("*.toml")).read_text()) if not (folder / "config.toml").exists() else {}
    settings = settings or tomllib.loads((folder / "config.toml").read_text())
    tcp = next(one for one in settings["listen"] if one.startswith("tcp:"))
    return f"http://{tcp.removeprefix('tcp:')}/ui/", add_token(folder / "tokens.toml", "ada", Role.OPERATOR)


def _shoot(
    browser: Browser, name: str, where: str, token: str, part: str, *, width: int, height: int, dark: bool = False
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(f"{where}{part}")
    page.get_by_label("Your token").fill(token)
    page.keyboard.press("Enter")
    _until_drawn(page)
    file = OUT / f"{name}.png"
    taken = Image.open(io.BytesIO(page.screenshot()))
    context.close()
    taken.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}: {os.path.getsize(file) >> 10} KiB")


def _until_drawn(page: Page) -> None:
    page.locator("#live.on").wait_for()
    page.locator("#nodes > li .facts, #job .life").first.wait_for()
    page.wait_for_timeout(1500)


if __name__ == "__main__":
    sys.exit(main())
