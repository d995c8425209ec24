"""Partitions: which nodes are whose, and which jobs may go to which; the manager's virtual clusters. PURE.

Each is a domain of its own, as a virtual cluster is in the simulator [helios §2.1].
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from farside.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition.

    Attributes:
        name: What jobs call it.
        accounts: Whose jobs may go there; empty: those of all.
        lend_grace_s: Its idle nodes run preemptible jobs of others that leave within this time; 0: they are not lent.
    """

    name: str
    accounts: frozenset[str] = frozenset()
    lend_grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """All partitions by name, in the order of the settings; none: all nodes are one domain, which has no name.

    Attributes:
        by_name: The partitions.
        owners: By node that some partition names, which.
        rest: Which partition has all other nodes; empty: none.
    """

    by_name: Mapping[str, Partition] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    rest: str = ""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.by_name)

    @property
    def is_lending(self) -> bool:
        """Whether any lends its nodes."""
        return any(one.lend_grace_s for one in self.by_name.values())

    def lend_grace_s(self, name: str) -> float:
        """How long a borrower of a partition's nodes may take to leave them; 0: it lends none."""
        partition = self.by_name.get(name)
        return 0.0 if partition is None else partition.lend_grace_s

    def owner_of(self, node: str) -> str:
        """The partition that a node belongs to; empty: none, or there are no partitions."""
        return self.owners.get(node, self.rest)

    def name_of(self, told: str) -> str:
        """The partition of a job that the log knows by ``told``: one from before there were partitions is in the first.

        A name that the settings do not have any more stays, and the partition has no nodes.
        """
        if not self.by_name:
            return ""
        return told or next(iter(self.by_name))

    def chosen(self, wanted: str, account: str) -> str:
        """The partition of a job of this account that names ``wanted``; empty: the first that is open to it.

        Raises:
            ConfigError: There is no such partition, or it is not for this account.
        """
        if not self.by_name:
            if wanted:
                raise ConfigError("partition: the cluster has no partitions", hint="leave it out")
            return ""
        open_to = [one.name for one in self.by_name.values() if not one.accounts or account in one.accounts]
        yours = f"theirs: {', '.join(open_to) or 'none'}"
        if wanted and wanted not in self.by_name:
            raise ConfigError(f"partition: there is no partition '{wanted:.60}'", hint=yours)
        if wanted and wanted not in open_to:
            raise ConfigError(f"partition: {wanted} is not for account {account}", hint=yours)
        if not open_to:
            raise ConfigError(f"partition: none is for account {account}", hint="ask an operator for one")
        return wanted or open_to[0]


NO_PARTITIONS = Partitions()
