"""The checkpoint folder's three steps over several nodes, some of which see another folder."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from farside.agent import messages as m
from farside.scheduler.manager.nodes.checkpoint_folder import Asker, folder_problem

PATH = "/shared/run"


@dataclass
class Storage:
    """One shared file system: the marks in its folder, and who made it."""

    marks: set[str] = field(default_factory=set)
    made: str = ""
    cleared: list[str] = field(default_factory=list)

    def answer(self, probe: m.Probe) -> m.Probed:
        if probe.step == "write":
            self.marks.add(probe.mark)
            return m.Probed(probe_id=probe.probe_id, made=self.made)
        if probe.step == "clear":
            self.marks.discard(probe.mark)
            self.cleared.append(probe.made)
            return m.Probed(probe_id=probe.probe_id)
        return m.Probed(probe_id=probe.probe_id, problem="" if probe.mark in self.marks else "is another folder")


def refusing(probe: m.Probe) -> m.Probed:
    return m.Probed(probe_id=probe.probe_id, is_refused=True)


Answer = Callable[[m.Probe], m.Probed] | None


def asked(**nodes: Answer) -> str:
    """What is found over nodes that answer so; one that is None hangs up on the first question."""

    async def run() -> str:
        askers: dict[str, Asker] = {}

        def answer(name: str, how: Answer) -> None:
            for probe in askers[name].unsent():
                assert isinstance(probe, m.Probe)
                if how is None:
                    askers[name].close()
                else:
                    askers[name].answered(how(probe))

        def call(name: str, how: Answer) -> None:
            asyncio.get_running_loop().call_soon(answer, name, how)

        for name, how in nodes.items():
            askers[name] = Asker(partial(call, name, how))
        return await folder_problem(askers, "ann", PATH)

    return asyncio.run(run())


def test_a_folder_that_all_nodes_share_is_good_and_keeps_no_mark() -> None:
    storage = Storage(made="/shared")

    assert asked(n1=storage.answer, n2=storage.answer, n3=storage.answer) == ""
    assert (storage.marks, storage.cleared) == (set(), [""])


def test_a_node_with_a_folder_of_its_own_is_named_and_what_was_made_is_taken_away() -> None:
    shared = Storage(made="/shared")

    problem = asked(n1=shared.answer, n2=shared.answer, n3=Storage().answer)

    assert problem == "checkpoint_dir: /shared/run on node n3: is another folder"
    assert (shared.marks, shared.cleared) == (set(), ["/shared"])


def test_nodes_that_run_nothing_of_the_user_have_no_say() -> None:
    storage = Storage()

    assert asked(n1=refusing, n2=storage.answer, n3=refusing) == ""
    assert asked(n1=refusing) == ""


def test_a_node_that_goes_away_while_it_is_asked_is_the_reason() -> None:
    storage = Storage()

    assert "n2: went away meanwhile" in asked(n1=storage.answer, n2=None)
    assert "n1: went away meanwhile" in asked(n1=None, n2=storage.answer)


def test_where_nobody_can_be_asked_nothing_speaks_against_it() -> None:
    assert asked() == ""


def test_who_asks_after_the_connection_has_gone_is_told_at_once() -> None:
    async def run() -> m.Probed:
        asker = Asker(lambda: None)
        asker.close()
        return await asker.ask(m.Probe(probe_id="1", step="see", user="ann", path=PATH, mark=".m"))

    assert asyncio.run(run()).problem == "went away meanwhile"
