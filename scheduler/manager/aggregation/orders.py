"""Offers of Aggregators as nodes report them, and orders to nodes. PURE."""

import msgspec

from farside.scheduler.manager.aggregation.state import Offer

AGGREGATOR = "aggregator"
"""The node service."""
_OFFER = msgspec.json.Decoder(Offer)


def offer_of(raw: str) -> Offer | None:
    """The offer of a node's Aggregator as the log has it; None: it has no such service any more."""
    try:
        return _OFFER.decode(raw) if raw else None
    except msgspec.MsgspecError:
        return None
