"""Writes the Grafana dashboards: `python deploy/grafana/generate.py` after a change here.

Two dashboards, as there are two planes: whoever may see one need not see the other. Noisy totals may fall,
so nothing here takes rate() of them: totals have error bands, change is delta() or deriv().
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models

HERE = Path(__file__).parent / "dashboards"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
KEYS = '{stream="$stream",key=~"$key"}'
STREAM = '{stream="$stream"}'
DASHES = {"fill": "dash", "dash": [8, 6]}


def query(ref: str, expr: str, legend: str, *, instant: bool = False) -> prometheus.Dataquery:
    """One query of a panel."""
    built = prometheus.Dataquery().ref_id(ref).expr(expr).legend_format(legend).datasource(SOURCE)
    return built.instant() if instant else built.range()


def fixed(property_id: str, value: object) -> models.DynamicConfigValue:
    """One property that an override sets."""
    return models.DynamicConfigValue(id_val=property_id, value=value)


def lines(
    title: str, about: str, unit: str, *queries: prometheus.Dataquery, width: int = 12
) -> timeseries.Panel:
    """Lines over time."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .span(width)
        .height(8)
        .line_width(2)
        .fill_opacity(0)
        .show_points(options.VisibilityMode.NEVER)
        .legend(common.VizLegendOptions().show_legend(True).placement(options.LegendPlacement.BOTTOM))
    )
    for one in queries:
        panel = panel.with_target(one)
    return panel


def banded(title: str, about: str, metric: str, more: str = "") -> timeseries.Panel:
    """A noisy number with its 95 % band, one panel a key: the lower edge fills up to the upper one."""
    labels = f'{{stream="$stream",key=~"$key"{more}}}'
    panel = lines(
        title,
        about,
        "short",
        query("A", f"evertally_{metric}{labels}", "noisy"),
        query("B", f"evertally:{metric}:upper95{labels}", "upper"),
        query("C", f"evertally:{metric}:lower95{labels}", "lower"),
        width=8,
    )
    hidden = [
        fixed("custom.lineWidth", 0),
        fixed("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}),
        fixed("color", {"mode": "fixed", "fixedColor": "#1f6f5c"}),
    ]
    filled = [*hidden, fixed("custom.fillBelowTo", "upper"), fixed("custom.fillOpacity", 20)]
    panel = panel.override_by_name("upper", hidden).override_by_name("lower", filled)
    return panel.repeat("key").repeat_direction("h")


def steps(*pairs: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    """Colours from values on."""
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=colour) for value, colour in pairs])
    )


def number(
    title: str, about: str, unit: str, expr: str, legend: str, colours: dashboard.ThresholdsConfig
) -> stat.Panel:
    """The latest value."""
    return (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .thresholds(colours)
        .span(6)
        .height(5)
        .with_target(query("A", expr, legend, instant=True))
    )


def variable(name: str, label: str, expr: str) -> dashboard.QueryVariable:
    """A choice of one label value."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(expr)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def several(name: str, label: str, expr: str) -> dashboard.QueryVariable:
    """A choice of label values, all of them at first."""
    return (
        variable(name, label, expr)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all"))
    )


def page(title: str, uid: str, about: str) -> dashboard.Dashboard:
    """An empty dashboard with its choice of data source."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags(["evertally"])
        .readonly()
        .timezone("utc")
        .time("now-24h", "now")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )


def releases() -> dashboard.Dashboard:
    """Everything the public plane shows."""
    green, amber, red = "green", "#a86400", "#b3372b"
    about = "Noisy running totals under differential privacy. A total may fall; bands hold 95 % of the noise."
    board = (
        page("evertally: released totals", "evertally-releases", about)
        .with_variable(variable("stream", "Stream", "label_values(evertally_release_index, stream)"))
        .with_variable(
            several("key", "Key", 'label_values(evertally_released_events{stream="$stream"}, key)')
        )
        .with_variable(
            variable("window", "Window", 'label_values(evertally_window_events{stream="$stream"}, window)')
        )
    )
    age = number(
        "Release age",
        "Time since the end of the last tick that is released for all keys.",
        "s",
        "evertally:release_age:seconds",
        "{{stream}}",
        steps((None, green), (600, amber)),
    )
    spent = number(
        "Budget spent",
        "The largest spent part of each scope's caps. The guarantee is the cap.",
        "percentunit",
        "evertally_budget_spent_ratio",
        "{{scope}}",
        steps((None, green), (0.8, amber), (0.95, red)),
    )
    ledger = number(
        "Ledger",
        "1 where the exporter reads the ledger.",
        "none",
        "evertally_ledger_up",
        "readable",
        steps((None, red), (1, green)),
    )
    refused = number(
        "Left out",
        "Streams and scopes beyond the exporter's limit on series.",
        "none",
        "evertally_exporter_refused",
        "{{kind}}s",
        steps((None, green), (1, red)),
    )
    for panel in (age, spent, ledger, refused):
        board = board.with_panel(panel)
    board = board.with_row(dashboard.Row("Totals"))
    board = board.with_panel(
        banded(
            "Total of $key, noisy, with its 95 % band",
            "Since the stream began. The band is 1.96 standard errors on both sides.",
            "released_events",
        )
    )
    board = board.with_panel(
        banded(
            "Last $window of $key, noisy, with its 95 % band",
            "A difference of two releases; its error is exact, far below the sum of the totals' errors.",
            "window_events",
            ',window="$window"',
        )
    )
    change = query("A", f"delta(evertally_released_events{KEYS}[15m])", "{{key}}")
    slope = query("A", f"deriv(evertally_released_events{KEYS}[15m])", "{{key}}")
    board = board.with_panel(
        lines("Change in 15 minutes", "delta() of the noisy totals; it may be negative.", "short", change)
    )
    board = board.with_panel(
        lines(
            "Slope", "deriv() of the noisy totals: counts a second, smoothed over 15 minutes.", "short", slope
        )
    )
    board = board.with_panel(
        lines(
            "Standard errors of totals",
            "They grow slowly, for ever: with the logarithm of the number of ticks.",
            "short",
            query("A", f"evertally_released_events_stderr{KEYS}", "{{key}}"),
        )
    )
    board = board.with_panel(
        lines(
            "Release age",
            "Stale above the dashed line: five ticks, at least ten minutes.",
            "s",
            query("A", f"evertally:release_age:seconds{STREAM}", "age"),
            query("B", f"evertally:release_stale_after:seconds{STREAM}", "stale above"),
        ).override_by_query("B", [fixed("custom.lineStyle", DASHES)])
    )
    board = board.with_row(dashboard.Row("Budget"))
    burn = (
        bargauge.Panel()
        .title("Spent part of each scope")
        .description("Reservations included.")
        .datasource(SOURCE)
        .unit("percentunit")
        .min(0)
        .max(1)
        .thresholds(steps((None, green), (0.8, amber), (0.95, red)))
        .span(12)
        .height(8)
        .with_target(query("A", "evertally_budget_spent_ratio", "{{scope}}", instant=True))
    )
    board = board.with_panel(burn)
    return board.with_panel(
        lines(
            "Budget burn",
            "Squared Gaussian mu: spent, and the cap it may never pass.",
            "none",
            query("A", "evertally_budget_spent_mu2", "{{scope}} spent"),
            query("B", "evertally_budget_cap_mu2", "{{scope}} cap"),
        ).override_by_query("B", [fixed("custom.lineStyle", DASHES)])
    )


def operators() -> dashboard.Dashboard:
    """What the operators' plane shows: exact functions of the data, not to be published."""
    board = page(
        "evertally: operators",
        "evertally-operators",
        "Exact functions of the data (counts, lag). For operators only; never embed or share it.",
    )
    worker, exporter = "evertally_worker_", "evertally_exporter_"
    letters = f"sum by (stream, code) (increase({worker}dead_letters_total[5m]))"
    look = f"increase({exporter}look_seconds_sum[5m]) / increase({exporter}look_seconds_count[5m])"
    answers = "sum by (route, status) (increase(evertally_budget_requests_total[5m]))"
    cpu = 'increase(process_cpu_seconds_total{job=~"evertally.*"}[5m])'
    who = "{{stream}} {{instance}}"
    panels = (
        ("Records read in 5 minutes", "short", f"increase({worker}events_read_total[5m])", who),
        ("Records not read yet", "short", f"{worker}lag_records", "{{stream}} {{stage}} {{instance}}"),
        ("Dead letters in 5 minutes", "short", letters, "{{stream}} {{code}}"),
        ("Ticks not published", "short", f"{exporter}unpublished_ticks", "{{stream}} {{shard}}"),
        ("Last tick on the topic", "short", f"{worker}topic_tick", "{{stream}} {{shard}}"),
        ("Silence of stages", "s", f"{worker}stage_silent_seconds", "{{stage}} {{instance}}"),
        ("Mean look at the ledger", "s", look, "{{instance}}"),
        ("Budget service: answers in 5 minutes", "short", answers, "{{route}} {{status}}"),
        ("Memory", "bytes", 'process_resident_memory_bytes{job=~"evertally.*"}', "{{instance}}"),
        ("CPU in 5 minutes", "s", cpu, "{{instance}}"),
    )
    for title, unit, expr, legend in panels:
        board = board.with_panel(lines(title, "", unit, query("A", expr, legend)))
    return board


def text(board: dashboard.Dashboard) -> str:
    """The dashboard as the file that is kept."""
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


DASHBOARDS = {"releases.json": releases, "operators.json": operators}


def main(folder: Path) -> None:
    """Write every dashboard into a folder."""
    for name, build in DASHBOARDS.items():
        (folder / name).write_text(text(build()), "utf-8")
        print(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
