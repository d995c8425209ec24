"""/v1/power: which nodes sleep, why, what it saves; and pardon for one that did not obey."""

from fastapi import APIRouter, HTTPException, Response
from msgspec import structs

from farside.scheduler.live.api.answer import answer
from farside.scheduler.live.api.depends import NodeNamed, Operator, Person
from farside.scheduler.live.api.document import says
from farside.scheduler.live.event import PowerPardoned
from farside.scheduler.live.follow import LiveLog
from farside.scheduler.live.power.keep import LivePower
from farside.scheduler.live.power.show import PowerReport, PowerRow, driver_names, energy_of, show_power


def power_routes(log: LiveLog, power: LivePower) -> APIRouter:
    """The routes about power. Everybody sees it; credentials are in none of them."""
    router = APIRouter(prefix="/v1/power", tags=["nodes"])
    setup = power.setup

    @router.get(
        "",
        summary="Which nodes are off, booting or about to go, how many are wanted and why",
        responses=says(PowerReport),
    )
    async def shown(_: Person) -> Response:
        state, now_s = log.state, log.now_s()
        keeper = power.keeper
        kept, stays = (keeper.nodes, keeper.stays) if keeper is not None else ({}, {})
        drivers = driver_names(setup.drivers, state.nodes)
        energy = energy_of(state, now_s, setup.idle_w, power.forecast)
        return answer(
            PowerReport(
                policy=setup.policy,
                dry_run=setup.is_dry_run,
                keeps=keeper is not None,
                at_s=now_s,
                idle_w=setup.idle_w,
                **structs.asdict(energy),
                nodes=[
                    show_power(node, drivers[name], kept.get(name), stays.get(name, ""))
                    for name, node in sorted(state.nodes.items())
                ],
            )
        )

    @router.post(
        "/{name}/pardon",
        summary="A node that did not obey its power switch is mended: it may serve again",
        responses=says(PowerRow, 404, 409),
    )
    async def pardon(caller: Operator, node: NodeNamed) -> Response:
        keeper = power.keeper
        if keeper is None:
            raise HTTPException(409, "no power is switched from here: another manager leads, or `power` is none")
        if node.name not in keeper.nodes:
            raise HTTPException(409, f"{node.name} has no power driver: it is always on")
        await log.write([PowerPardoned(node=node.name, by=caller.name)], caller.told)
        keeper.pardon(node.name)
        kept = keeper.nodes[node.name]
        return answer(show_power(node, driver_names(setup.drivers, [node.name])[node.name], kept))

    return router
