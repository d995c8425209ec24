"""The page in a real browser: it shows what is so, live, to who may see it, by keyboard, small, light and dark."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from farside.agent import messages as m
from farside.client.manager_client import ManagerClient
from farside.scheduler.power.state import Phase as PowerPhase
from tests.live.fake_agent import FakeNode
from tests.live.test_deployments import TOLD
from tests.support.programs import run
from tests.support.waiting import until
from tests.web.scene import EVIL, Scene, a_scene, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIMIT_MS = 60_000
# WCAG 2.2, 1.4.3: of normal text.
CONTRAST_LEAST = 4.5
# The contrast of every text that is seen with what it stands on.
CONTRASTS = """() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (css) => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = css; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.data.trim().slice(0, 30)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its own sandbox needs rights that a container's root has not; it sees our page only.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def scene(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with a_scene(tmp_path_factory.mktemp("web")) as scene:
        yield scene


@pytest.fixture
def page(browser: "Browser", scene: Scene, request: pytest.FixtureRequest) -> "Iterator[Page]":
    """The page before anybody has signed in. Whatever the browser complains of fails the test."""
    context = browser.new_context(**getattr(request, "param", {}), reduced_motion="reduce")
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    yield page
    context.close()
    # That it was nobody yet, that a token was wrong or a manager away, the browser tells too.
    assert [one for one in complaints if not one.startswith("Failed to load resource")] == []


def sign_in(page: "Page", scene: Scene, token: str = "", part: str = "") -> "Page":
    page.goto(scene.page + part)
    page.get_by_label("Your token").fill(token or scene.operator)
    page.keyboard.press("Enter")
    page.locator("#live.on").wait_for()
    return page


def texts(page: "Page", where: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(where).all_inner_texts()]


# ---------------------------------------------------------------------------------------------- what is seen


def test_an_operator_sees_nodes_loans_power_and_all_jobs_with_why_they_wait(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)

    # Sensors and reasons come with the next refresh at the latest.
    wanted = {"Memory lent 3 GiB to other nodes", "GPU power 2.4 kW now"}
    until(lambda: wanted <= set(texts(page, "#figures > div")), what="what nodes feel")
    assert texts(page, "#figures > div")[0] == "GPUs in use 12 of 16"
    until(lambda: texts(page, "#loans li") == ["n1 lends to n2 3 GiB"], what="the loan")
    assert texts(page, "#nodes .name") == ["n1", "n2"]
    assert page.locator("#nodes .gpus i.held").count() == 12
    assert [line.split()[:2] for line in texts(page, "#active tr")] == [["2", "train-llama"]]
    page.locator("#waiting tr").first.get_by_text("for the end of job 2").wait_for()
    assert [line.split()[1] for line in texts(page, "#ended tr")] == ["broken-import"]


@pytest.mark.long
def test_a_node_shows_the_state_of_each_of_its_services(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)

    wanted = ["donor: node n1, control tcp:192.0.2.1:9000, has rdma yes", "borrower: size 8 GiB"]
    until(lambda: texts(page, "#nodes .services p") == wanted, what="both services")


@pytest.mark.long
def test_a_deployment_is_seen_with_its_gpus_cut_and_its_models(page: "Page", scene: Scene) -> None:
    told = {**TOLD, "problem": "1 of 2 devices are there", "changes": [{"at_s": 1.0, "cause": "devices", "gpus": 1}]}
    with ManagerClient(scene.manager.address) as client:
        client.put("deployments", "vision", body=told)
        sign_in(page, scene)
        page.locator("#deployments .cut i").wait_for()

    card = texts(page, "#deployments > li")[0]
    assert "vision" in card
    assert "ready" in card
    assert "1 of 2 devices are there" in card
    assert "job 3 on n1 running · 1 min 30 s left" in card
    assert "net 20.0 of 25.0 planned/s · p99 40.0 of 100 ms · 1 late or failed" in card
    assert "devices: 1 GPU" in card
    bar = page.locator("#deployments .cut").first
    assert bar.get_attribute("aria-label") == "60 %: net x4, cycle 20.0 ms, 55 % occupied"
    assert bar.locator("i").first.evaluate("bar => bar.style.width") == "60%"


def test_a_user_sees_nodes_and_none_of_others_jobs(page: "Page", scene: Scene) -> None:
    sign_in(page, scene, scene.user)

    until(lambda: texts(page, "#nodes .name") == ["n1", "n2"], what="both nodes")
    assert texts(page, "main tbody tr") == []
    page.goto(f"{scene.page}#/jobs/2")
    page.get_by_text("job 2: you have no such job").wait_for()


def test_names_that_are_markup_are_shown_and_never_run(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)

    assert page.locator("#waiting tr").first.locator("td").nth(1).inner_text() == EVIL
    page.locator("#waiting a").first.click()
    page.locator("#job-title").get_by_text(EVIL).wait_for()
    assert page.locator("main img").count() == 0


def test_what_happens_is_seen_without_being_asked_for(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)

    job = scene.manager.submit(name="just-now", gpus=2)
    page.locator("#active").get_by_text("just-now").wait_for()
    scene.runs(job)
    scene.exit(f"{job}.0")
    page.locator("#ended").get_by_text("just-now").wait_for()
    page.locator("#active").get_by_text("just-now").wait_for(state="detached")


@pytest.mark.long
def test_a_job_s_page_has_its_history_and_follows_it(page: "Page", scene: Scene) -> None:
    job = scene.manager.submit(name="followed", gpus=1)
    scene.runs(job)
    sign_in(page, scene, part=f"#/jobs/{job}")

    page.locator(".history").get_by_text("rank 0 on", exact=False).first.wait_for()
    history = texts(page, ".history .words")
    assert history[-1].startswith("submitted")
    scene.exit(f"{job}.0", 7)
    page.locator("#job .sub .state").get_by_text("failed").wait_for()
    until(lambda: "exit code 7" in texts(page, ".history .words")[1], what="why it has failed")


@pytest.mark.long
def test_a_page_that_was_cut_off_says_so_and_goes_on_by_itself(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)

    scene.manager.kill("api")
    page.get_by_text("no answer, trying again").wait_for()
    page.locator("#live.on").wait_for(timeout=60_000)
    scene.manager.wait_ready()
    for name in list(scene.nodes):
        scene.join(scene.nodes[name])


# ---------------------------------------------------------------------------------------------- who


def test_a_wrong_token_is_said_and_the_right_one_then_works(page: "Page", scene: Scene) -> None:
    page.goto(scene.page)
    page.get_by_label("Your token").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("this token is not known here").wait_for()

    page.get_by_label("Your token").fill(scene.user)
    page.keyboard.press("Enter")

    page.locator("#who").get_by_text("carl").wait_for()
    assert scene.user not in page.url
    assert page.evaluate("document.cookie + JSON.stringify([localStorage, sessionStorage])") == "[{},{}]"


@pytest.mark.long
def test_who_signs_out_is_out(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)

    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Your token").wait_for()
    page.reload()
    page.get_by_label("Your token").wait_for()


# ---------------------------------------------------------------------------------------------- by keyboard


def focused(page: "Page") -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.textContent"))


@pytest.mark.long
def test_all_of_it_works_by_keyboard(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)
    page.locator("#waiting a").first.wait_for()

    seen = []
    for key in ("n", "r", "w", "e"):
        page.keyboard.press(key)
        seen.append(focused(page))
    assert seen == ["nodes-title", "active-title", "waiting-title", "ended-title"]
    page.keyboard.press("j")
    first = focused(page)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("#job .life").wait_for()
    page.keyboard.press("u")
    page.locator("#overview").wait_for()
    assert focused(page) not in (first, "")  # where one was
    page.keyboard.press("/")
    page.keyboard.type("later")
    until(lambda: [line.split()[1] for line in texts(page, "main tbody tr")] == ["later"], what="the jobs of that name")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()


@pytest.mark.long
def test_the_first_stop_of_the_tab_key_leads_past_the_frame(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)
    page.reload()
    page.locator("#live.on").wait_for()

    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    stops = []
    for _ in range(3):
        page.keyboard.press("Tab")
        stops.append(focused(page))
    assert stops[0] == "filter"


@pytest.mark.long
def test_keys_can_be_switched_off(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)
    page.keyboard.press("?")
    page.get_by_label("Enable these keys").uncheck()
    page.keyboard.press("Escape")

    page.keyboard.press("w")

    assert focused(page) != "waiting-title"


# ---------------------------------------------------------------------------------------------- how it looks

PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize("page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], ids=str, indirect=True)
def test_every_text_can_be_read(page: "Page", scene: Scene) -> None:
    page.goto(scene.page)
    page.get_by_label("Your token").wait_for()
    found = page.evaluate(CONTRASTS)
    sign_in(page, scene)
    page.locator("#waiting a").first.wait_for()
    found += page.evaluate(CONTRASTS)
    page.locator("#waiting a").first.click()
    page.locator("#job .life").wait_for()
    found += page.evaluate(CONTRASTS)

    assert len(found) > 60
    assert [one for one in found if one[0] < CONTRAST_LEAST] == []


@pytest.mark.parametrize("page", [PHONE], ids=["phone"], indirect=True)
def test_on_a_phone_nothing_is_wider_than_the_screen(page: "Page", scene: Scene) -> None:
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    sign_in(page, scene)
    page.locator("#waiting a").first.wait_for()

    overview = page.evaluate(wide)
    page.locator("#active a").first.click()
    page.locator("#job .life").wait_for()

    assert (overview, page.evaluate(wide)) == (0, 0)


# WCAG 2.2, 2.5.8, without its exceptions: what a finger can hit. A box's label is hit in its place.
TARGET_LEAST_PX = 24
SMALL_TARGETS = """(least) => [...document.querySelectorAll("a, button, input, select, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.matches(".skip"))
  .map((one) => [one, (one.closest("label") ?? one).getBoundingClientRect()])
  .filter(([, box]) => box.width < least || box.height < least)
  .map(([one, box]) => `${one.tagName} ${one.id || one.textContent}: ${box.width} x ${box.height}`)"""


@pytest.mark.long
@pytest.mark.parametrize("page", [PHONE], ids=["phone"], indirect=True)
def test_on_a_phone_everything_can_be_hit_with_a_finger(page: "Page", scene: Scene) -> None:
    page.goto(scene.page)
    page.get_by_label("Your token").wait_for()
    small = page.evaluate(SMALL_TARGETS, TARGET_LEAST_PX)
    sign_in(page, scene)
    page.locator("#waiting a").first.wait_for()
    small += page.evaluate(SMALL_TARGETS, TARGET_LEAST_PX)
    page.locator("#active a").first.tap()
    page.locator("#job .life").wait_for()
    small += page.evaluate(SMALL_TARGETS, TARGET_LEAST_PX)

    assert small == []


@pytest.mark.long
@pytest.mark.parametrize("page", [PHONE], ids=["phone"], indirect=True)
def test_on_a_phone_a_job_is_opened_and_left_by_touch(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)

    page.locator("#active a").first.tap()
    page.locator("#job .life").wait_for()
    page.locator("#job").get_by_role("link", name="Overview").tap()

    page.locator("#overview").wait_for()
    assert not page.locator("#job .life").is_visible()


@pytest.mark.long
def test_light_and_dark_follow_the_browser(page: "Page", scene: Scene) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    page.goto(scene.page)
    light = page.evaluate(back)
    page.emulate_media(color_scheme="dark")

    assert light != page.evaluate(back)


@pytest.mark.long
def test_a_node_that_is_gone_is_told_with_its_reason(page: "Page", scene: Scene) -> None:
    scene.manager.post("nodes", "n2", "drain", body={"reason": "new fans on Friday"})
    sign_in(page, scene)

    page.locator("#nodes").get_by_text("new fans on Friday").wait_for()
    assert FakeNode("n2").name in page.locator("#nodes > li", has_text="new fans").inner_text()
    scene.manager.post("nodes", "n2", "undrain")


@pytest.mark.long
def test_nodes_that_sleep_what_it_saves_and_how_many_are_expected_are_seen(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)
    for name in ("night", "morning"):
        scene.join(FakeNode(name, gpus=4))
        scene.sleeps(name, PowerPhase.OFF, "kept by 3 rules within the risk")
    scene.sleeps("morning", PowerPhase.BOOTING, "jobs need 3 nodes now")

    night = page.locator("#nodes > li", has_text="kept by 3 rules within the risk")
    page.locator("#nodes > li", has_text="booting").wait_for()  # until then both are kept
    night.wait_for()
    assert "asleep" in night.inner_text()
    wanted = {"Asleep 1 1 booting", "Needed 2 nodes to stay on"}
    until(lambda: wanted <= set(texts(page, "#figures > div")), what="how many sleep and are needed")
    figures = texts(page, "#figures > div")
    assert [one for one in figures if one.endswith("kWh, against all nodes on")]


@pytest.mark.long
def test_a_forecast_that_is_not_there_yet_is_told_over_what_is_expected(page: "Page", scene: Scene) -> None:
    sign_in(page, scene)
    for name in ("late", "evening"):  # one has a driver
        scene.join(FakeNode(name, gpus=4))
    scene.sleeps("late", PowerPhase.OFF, "kept by 3 rules within the risk")

    expected = page.locator("#figures > div", has_text="nodes to stay on, without a forecast")
    expected.wait_for()

    told = "no forecast before 2.9 days are known, 0.0 are; rules alone decide"
    assert str(expected.get_attribute("title")).endswith(f"; {told}")
    shown = run([sys.executable, "-m", "farside", "power", "--manager", f"unix:{scene.manager.folder}/manager.sock"])
    assert told in shown.splitlines()


# ---------------------------------------------------------------------------------------------- turns on nodes


def takes_turns(scene: Scene, executor: m.ExecutorFacts) -> None:
    scene.nodes["n1"].executor = executor
    scene.report("n1")


@pytest.mark.long
def test_jobs_that_take_turns_on_a_node_are_seen_with_what_bounds_them_as_it_changes(
    page: "Page", scene: Scene
) -> None:
    taker = m.TurnTaker(job="2", start=1, rank=0, comp_s=0.3, net_s=0.1, iteration_s=0.42, turns=30)
    sign_in(page, scene)
    assert not page.locator("#groups-part").is_visible()

    takes_turns(scene, m.ExecutorFacts(is_there=True, takers=(taker,)))
    words = "n1 job 2 · bound by one job · 0.400 s predicted · 0.420 s measured"
    until(lambda: texts(page, "#groups li") == [words], what="a group")
    assert page.get_by_role("heading", name="Turns on nodes").is_visible()

    takes_turns(scene, m.ExecutorFacts(is_there=True, takers=(taker,), others=2))
    until(lambda: texts(page, "#groups li") == ["n1 job 2 · 2 others"], what="others")

    spill = m.SpilledInput(spilled=0.25, input_bytes=1 << 30, disk_bytes=3 << 20, peer_bytes=1 << 20, waited_s=1.5)
    reading = replace(taker, spill=spill)
    takes_turns(scene, m.ExecutorFacts(is_there=True, takers=(reading,)))
    told = "job 2: 25 % of 1 GiB not in memory, 3 MiB read from disk, 1 MiB from peers, 1.50 s waited for it"
    until(lambda: texts(page, "#groups li") == [f"{words} · {told}"], what="input that is read back")

    used = replace(taker, processor=m.ProcessorUse(comp_s=0.3, rest_s=0.0125, processors=2))
    takes_turns(scene, m.ExecutorFacts(is_there=True, takers=(used,)))
    told = "job 2: 0.0125 CPU s for updates, of 2 processors"
    until(lambda: texts(page, "#groups li") == [f"{words} · {told}"], what="processor time")

    takes_turns(scene, m.ExecutorFacts(is_there=True))
    until(lambda: not page.locator("#groups-part").is_visible(), what="a page without groups")


def test_whose_job_takes_turns_is_seen_by_who_may_see_it(page: "Page", scene: Scene) -> None:
    taker = m.TurnTaker(job="2", start=1, rank=0, comp_s=0.3, net_s=0.1, iteration_s=0.42, turns=30)
    takes_turns(scene, m.ExecutorFacts(is_there=True, takers=(taker,)))
    sign_in(page, scene, scene.user)

    until(lambda: texts(page, "#groups li"), what="a group")
    (words,) = texts(page, "#groups li")
    assert words.startswith("n1 1 other")
    assert "job 2" not in words
    takes_turns(scene, m.ExecutorFacts(is_there=True))
