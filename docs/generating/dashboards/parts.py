"""The few kinds of panels and queries that our dashboards are made of.

Why apart: a dashboard should read as a list of questions, each with its expression, not as Grafana's options.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
P = TypeVar("P", timeseries.Panel, statetimeline.Panel)
WIDTH = 24
"""Columns of Grafana's grid."""
HEIGHT = 8


@dataclass(frozen=True)
class Section:
    """A heading, and the panels below it."""

    title: str
    panels: tuple[Builder[model.Panel], ...]

    @classmethod
    def of(cls, title: str, *panels: Builder[model.Panel]) -> "Section":
        return cls(title, panels)


def laid_out(built: dashboard.Dashboard, *sections: Section) -> dashboard.Dashboard:
    """The dashboard with these sections below each other."""
    for section in sections:
        built = built.with_row(dashboard.Row(section.title))
        for panel in section.panels:
            built = built.with_panel(panel)
    return built


def query(expression: str, legend: str = "") -> prometheus.Dataquery:
    """A line for each series, named by `legend` (`{{label}}` is the label's value)."""
    return prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE).range()


def column(name: str, expression: str) -> prometheus.Dataquery:
    """A column of a `rows` panel."""
    return (
        prometheus.Dataquery()
        .expr(expression)
        .ref_id(name)
        .format(PromQueryFormat.TABLE)
        .datasource(SOURCE)
        .instant()
    )


def number(
    title: str,
    question: str,
    expression: str,
    *,
    unit: str = "short",
    span: int = 3,
    bad_from: float | None = None,
) -> stat.Panel:
    """One number, with its course behind it; red from `bad_from` on."""
    panel = (
        stat.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .graph_mode(options.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("–")
        .with_target(query(expression).ref_id("A"))
    )
    steps = [model.Threshold(color="green", value=None)]
    if bad_from is not None:
        steps.append(model.Threshold(color="red", value=bad_from))
    return panel.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))


def graph(
    title: str,
    question: str,
    *queries: prometheus.Dataquery,
    unit: str = "short",
    span: int = 8,
    stacked: bool = False,
    least: float | None = 0,
) -> timeseries.Panel:
    """Lines over time; `stacked` where they add up to something."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(HEIGHT)
        .legend(
            common.VizLegendOptions()
            .display_mode(options.LegendDisplayMode.LIST)
            .placement(options.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(options.TooltipDisplayMode.MULTI)
            .sort(options.SortOrder.DESCENDING)
        )
    )
    if least is not None:
        panel = panel.min(least)
    if stacked:
        panel = panel.fill_opacity(60).stacking(
            common.StackingConfig().mode(options.StackingMode.NORMAL).group("A")
        )
    return with_all(panel, queries)


def timeline(
    title: str, question: str, *queries: prometheus.Dataquery, span: int = 12
) -> statetimeline.Panel:
    """A bar for each series, coloured by its value."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .span(span)
        .height(HEIGHT)
        .no_value("–")
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.CONTINUOUS_GR_YL_RD))
    )
    return with_all(panel, queries)


def with_all(panel: P, queries: Sequence[prometheus.Dataquery]) -> P:
    """The panel with these queries, named A, B, …"""
    for letter, one in zip(string.ascii_uppercase, queries, strict=False):
        panel = panel.with_target(one.ref_id(letter))
    return panel


def rows(
    title: str,
    question: str,
    columns: Sequence[tuple[prometheus.Dataquery, str, str]],
    *,
    by: Sequence[tuple[str, str]],
    link: str,
) -> table.Panel:
    """A row for each combination of the labels `by` (label, heading); columns with heading and unit."""
    panel = (
        table.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .span(WIDTH)
        .height(10)
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    )
    headings = dict(by)
    for one, heading, unit in columns:
        name = f"Value #{one.build().ref_id}"
        headings[name] = heading
        panel = panel.with_target(one).override_by_name(
            heading, [model.DynamicConfigValue(id_val="unit", value=unit)]
        )
    order = {name: place for place, name in enumerate(headings)}
    organize = {"excludeByName": {"Time": True}, "renameByName": headings, "indexByName": order}
    return panel.with_transformation(
        model.DataTransformerConfig(id_val="organize", options=organize)
    ).override_by_name(
        by[-1][1],
        [
            model.DynamicConfigValue(
                id_val="links", value=[{"title": "Look at this job", "url": link, "targetBlank": False}]
            )
        ],
    )


def board(title: str, uid: str, description: str) -> dashboard.Dashboard:
    """A dashboard with the choice of the Prometheus to ask."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["ddpjob"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )


def choice(name: str, label: str, values: str, *, several: bool = False) -> dashboard.QueryVariable:
    """A value of a label to choose; `values` is Grafana's `label_values(metric, label)`."""
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .query(values)
        .datasource(SOURCE)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
    )
    return variable.multi(multi=True).include_all(include_all=True).all_value(".*") if several else variable
