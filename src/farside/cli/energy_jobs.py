"""The command `farside energy jobs`: a trace on nodes that sleep, compared with nodes that do not."""

from collections.abc import Mapping

from farside.cli.sim import Request
from farside.cli.simulate.request import prepare
from farside.errors import ConfigError
from farside.scheduler.energy.catalog import make_online
from farside.scheduler.sim.energy.sleeping import Cost, SleepingSimulation, cost_of


def compare_runs(request: Request, policy: str, settings: Mapping[str, str], *, boot_s: float) -> Cost:
    """Runs the trace with sleep and without.

    Raises:
        ConfigError: Anything that was asked for is wrong, or virtual clusters change in size by themselves.
    """
    make_policy = make_online(policy, settings)
    prepared = prepare(request)
    scene, experiment = prepared.scene, prepared.experiments[0]
    if scene.site.resizes:
        raise ConfigError("nodes cannot both sleep and leave", hint="give --nodes, or --vc-nodes without days")
    before = experiment.simulation(scene.site, scene.jobs).run()
    simulation = SleepingSimulation(
        scene.site.cluster, experiment.rules, scene.jobs, estimator=experiment.make_estimator(scene.jobs),
        make_policy=make_policy, boot_s=boot_s,
    )  # fmt: skip
    return cost_of(simulation, simulation.run(), before)
