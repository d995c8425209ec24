"""Settings that an agent which was killed has left turned down, put back without an agent."""

import os

from farside.agent.rest.cpu_governor import CpuGovernor
from farside.agent.rest.gpu_cap import GpuCap
from farside.agent.rest.saver import RestHand
from farside.config import AgentConfig
from farside.config.check import names_in
from farside.errors import ConfigError
from farside.kernel_file import boot_id
from farside.whole_file import lock_file


def hand_of(config: AgentConfig) -> RestHand:
    """What turns this machine's settings down and up, by the agent's settings."""
    savers = (CpuGovernor(root=config.proc_root.parent / "sys"), GpuCap())
    return RestHand(savers, names_in(config.rest), config.state_dir, boot_id(config.proc_root))


def end_rest(config: AgentConfig) -> None:
    """Put back what the record in ``state_dir`` says; nothing without a record.

    Raises:
        ConfigError: An agent works in ``state_dir``, and puts it back itself; or the folder can't be used.
        Unavailable: Something can't be put back; the record keeps it.
    """
    hand = hand_of(config)
    if not hand.has_record:
        return
    try:
        lock = lock_file(config.state_dir / "agent.lock")
    except OSError as error:
        raise ConfigError(f"state_dir {config.state_dir}: {error.strerror}") from error
    if lock is None:
        raise ConfigError(f"state_dir {config.state_dir}: an agent works in it", hint="it ends its rest itself")
    try:
        hand.resume()
    finally:
        os.close(lock)
