"""Routes of /v1/power: which nodes sleep and why, the energy saved, and pardon of a node that did not obey.

Everybody sees it; credentials are in none of the answers.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, HTTPException, Response
from msgspec import structs

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.api.openapi_document import says
from farside.scheduler.manager.api.route_arguments import NodeNamed, Operator, Person, Shared
from farside.scheduler.manager.model.event import PowerPardoned
from farside.scheduler.manager.view.power import PowerReport, PowerRow, energy_of, show_power
from farside.scheduler.power.driver.catalog import DRIVERS

router = APIRouter(prefix="/v1/power", tags=["nodes"])
_DRIVER_NAMES: Mapping[type[Any], str] = {kind: name for name, kind in DRIVERS.items()}


@router.get("", responses=says(PowerReport))
async def shown(_: Person, shared: Shared) -> Response:
    """Which nodes are off, booting or about to go, how many are wanted and why."""
    state, now_s = shared.log.state, shared.log.now_s()
    controller, setup = shared.power.controller, shared.power.setup
    kept, stays = (controller.nodes, controller.stays) if controller is not None else ({}, {})
    return answer(
        PowerReport(
            policy=setup.policy,
            dry_run=setup.is_dry_run,
            keeps=controller is not None,
            at_s=now_s,
            idle_w=setup.idle_w,
            **structs.asdict(energy_of(state, now_s, setup.idle_w, shared.power.forecast)),
            nodes=[
                show_power(node, _driver_name(name, shared), kept.get(name), stays.get(name, ""))
                for name, node in sorted(state.nodes.items())
            ],
        )
    )


@router.post("/{name}/pardon", responses=says(PowerRow, 404, 409))
async def pardon(caller: Operator, node: NodeNamed, shared: Shared) -> Response:
    """Let a node serve again that did not obey its power switch, and was fixed."""
    controller = shared.power.controller
    if controller is None:
        raise HTTPException(409, "this manager switches no power: another one leads, or `power` is none")
    if node.name not in controller.nodes:
        raise HTTPException(409, f"{node.name} has no power driver: it is always on")
    await shared.log.write([PowerPardoned(node=node.name, by=caller.name)], caller.told)
    controller.pardon(node.name)
    return answer(show_power(node, _driver_name(node.name, shared), controller.nodes[node.name]))


def _driver_name(node: str, shared: Context) -> str:
    """Name of a node's driver in the drivers' file; empty: it has none, and is always on."""
    return _DRIVER_NAMES.get(type(shared.power.setup.drivers.get(node)), "")
