"""Loading the state when a process of the manager starts: the snapshot, then the entries after it."""

from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.snapshot import decode_state
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.store.event_store import EventStore


def first_state(store: EventStore) -> LiveState:
    """The state of the snapshot; an empty one where there is none.

    Raises:
        StoreError: The store can't be read.
        RemoteProtocolError: The snapshot is damaged, or of a later version.
    """
    found = store.snapshot()
    return LiveState() if found is None else decode_state(*found)


def whole_state(store: EventStore) -> LiveState:
    """The state at the end of the log.

    Raises:
        FarsideError: The store can't be read, or what it has is damaged or of a later version.
    """
    state = first_state(store)
    read_on(store, state)
    return state


def read_on(store: EventStore, state: LiveState) -> None:
    """Moves a state on to the end of the log."""
    while entries := store.read(state.seq):
        for entry in entries:
            apply(state, entry)
