"""HTML pages of reports, made of the templates in scheduler/sim/html: each complete in itself."""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, values: Mapping[str, Any], **filters: Callable[..., Any]) -> str:
    """Render a template of scheduler/sim/html; every value is text, except what the template marks as safe."""
    environment = Environment(
        loader=PackageLoader("farside.scheduler.sim", "html"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters.update(filters)
    return environment.get_template(template).render(values)
