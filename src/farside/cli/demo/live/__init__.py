"""The demo's live scene: a day of a log under a real manager, beside its simulation."""
