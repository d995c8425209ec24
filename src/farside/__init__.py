"""Farside: idle memory of other machines as swap space, a manager for jobs on a GPU cluster, shared aggregation."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farside.training.attach import attach as attach


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Nothing but a training script imports PyTorch, and `import farside` is none of that.
        if name == "attach":
            from farside.training.attach import attach

            return attach
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
