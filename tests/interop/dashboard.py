"""The fields and values that our Grafana dashboard uses, to read it by; another one is an error.

That Grafana knows them is shown by its own types, in test_dashboard.py.
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

PATH = Path(__file__).parents[2] / "systemd/farside.dashboard.json"


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of the file."""


class Source(Part, frozen=True, kw_only=True):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class GridPos(Part, frozen=True, kw_only=True):
    h: int
    w: int
    x: int
    y: int


class Target(Part, frozen=True, kw_only=True):
    refId: str  # noqa: N815 - Grafana's names
    datasource: Source
    expr: str
    legendFormat: str  # noqa: N815
    range: bool


class Stacking(Part, frozen=True, kw_only=True):
    mode: Literal["none", "normal", "percent"]
    group: str


class Custom(Part, frozen=True, kw_only=True):
    fillOpacity: int  # noqa: N815
    lineWidth: int  # noqa: N815
    showPoints: Literal["auto", "never", "always"]  # noqa: N815
    stacking: Stacking


class Defaults(Part, frozen=True, kw_only=True):
    unit: Literal["short", "percentunit", "s", "bytes", "ops", "watt"]
    min: float
    max: float | None = None
    custom: Custom | None = None


class FieldConfig(Part, frozen=True, kw_only=True):
    defaults: Defaults
    overrides: tuple[()]


class Legend(Part, frozen=True, kw_only=True):
    displayMode: Literal["list", "table", "hidden"]  # noqa: N815
    placement: Literal["bottom", "right"]
    showLegend: bool  # noqa: N815


class Tooltip(Part, frozen=True, kw_only=True):
    mode: Literal["single", "multi", "none"]
    sort: Literal["asc", "desc", "none"]


class Reduce(Part, frozen=True, kw_only=True):
    calcs: tuple[Literal["lastNotNull"], ...]
    fields: str
    values: bool


class Options(Part, frozen=True, kw_only=True):
    legend: Legend | None = None
    tooltip: Tooltip | None = None
    reduceOptions: Reduce | None = None  # noqa: N815
    colorMode: Literal["value", "background", "none"] | None = None  # noqa: N815
    graphMode: Literal["none", "line", "area"] | None = None  # noqa: N815
    textMode: Literal["auto", "value", "name", "none"] | None = None  # noqa: N815


class Panel(Part, frozen=True, kw_only=True):
    id: int
    type: Literal["row", "timeseries", "stat"]
    title: str
    gridPos: GridPos  # noqa: N815
    collapsed: bool = False
    panels: tuple[()] = ()
    description: str = ""
    datasource: Source | None = None
    fieldConfig: FieldConfig | None = None  # noqa: N815
    options: Options | None = None
    targets: tuple[Target, ...] = ()


class VariableQuery(Part, frozen=True, kw_only=True):
    query: str
    refId: str  # noqa: N815


class Empty(Part, frozen=True, kw_only=True):
    pass


class Variable(Part, frozen=True, kw_only=True):
    name: str
    label: str
    type: Literal["datasource", "query"]
    query: str | VariableQuery
    refresh: Literal[0, 1, 2]
    includeAll: bool  # noqa: N815
    multi: bool
    current: Empty
    options: tuple[()]
    datasource: Source | None = None
    allValue: str | None = None  # noqa: N815
    sort: int = 0


class Templating(Part, frozen=True, kw_only=True):
    list: tuple[Variable, ...]


class Annotations(Part, frozen=True, kw_only=True):
    list: tuple[()]


class Span(Part, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: str
    to: str


class Dashboard(Part, frozen=True, kw_only=True):
    title: str
    uid: str
    tags: tuple[str, ...]
    editable: bool
    graphTooltip: Literal[0, 1, 2]  # noqa: N815
    schemaVersion: int  # noqa: N815
    version: int
    refresh: str
    time: Span
    timezone: Literal["browser", "utc"]
    templating: Templating
    annotations: Annotations
    links: tuple[()]
    panels: tuple[Panel, ...]


def read_dashboard() -> Dashboard:
    """The dashboard that we ship, every field checked."""
    return msgspec.json.decode(PATH.read_bytes(), type=Dashboard)
