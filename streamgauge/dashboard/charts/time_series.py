"""Charts over time: lines with one tooltip for all series, and stacked bars."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import altair as alt
import polars as pl

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.selection import MIN_SAMPLES
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import (
    FADED,
    HEIGHT,
    OVER_TIME,
    POINT_OF_LINE,
    Y_AXIS_PX,
    Drawing,
    Layers,
    TimeRange,
    clickable,
    duration_unit,
    faded,
    largest,
    time_tooltip,
    to_wall_time,
    tooltips,
    whole_numbers,
)

REST_OPACITY = 0.55
"""Factor of the opacity of series that are not highlighted."""
OUTLIER_FACTOR = 4.0
"""A maximum this many times above the 95th percentile of all points flattens the other points."""


def time_lines(
    frame: pl.DataFrame,
    value: str,
    time: TimeRange,
    *,
    series: str | None = None,
    series_colors: Mapping[str, str] | None = None,
    unit: str | None = None,
    to_text: Callable[[float | None], str] | None = None,
    objective: float | None = None,
    percent: bool = False,
    clip_outliers: bool = False,
    highlighted: Collection[str] = (),
    samples: str | None = None,
    top: float | None = None,
    height: int = HEIGHT,
) -> Drawing:
    """Lines of `value` over `at`, one per value of the column `series`.

    - A column that ends in `_ns` is a duration and gets the unit that suits it. `to_text` formats the values of the tooltip.
    - A line breaks where a point of time has no data. A point without neighbours is a dot.
    - The tooltip shows all series at the point of time nearest to the pointer.
    - `objective` adds a dashed line, each mark of the time range a vertical one.
    - `highlighted` series are drawn bold, and the others thin and grey. Without any that occurs, all are equal. The series
      "total" is always bold.
    - `samples` is the column with the number of samples of each point, which the tooltip shows. Points with less than
      `MIN_SAMPLES` are faded, and so are incomplete points, which do not set the scale.
    - `clip_outliers` ends the axis below outliers, and shows the maximum in the axis title. `top` ends the axis at a value.
    """
    frame = frame.filter(pl.col(value).is_not_null())
    divisor = 1.0
    if value.endswith("_ns"):
        divisor, unit = duration_unit(largest(time.complete(frame), value))
        to_text = to_text or formatting.duration
    to_text = to_text or formatting.count
    name = series or "series"
    if series is None:
        frame, series_colors = frame.with_columns(pl.lit("").alias(name)), {"": colors.SINGLE}
    shown = colors.present(series_colors or colors.by_name(sorted(set(frame[name]))), frame, name)
    n = pl.col(samples) if samples else pl.lit(None)
    text = pl.col(value).map_elements(to_text, return_dtype=pl.String)
    text = pl.format("{} (n {})", text, n) if samples else text
    points = frame.select(
        "at",
        name,
        (pl.col(value) / divisor).alias("y"),
        pl.when(time.is_complete()).then(text).otherwise(pl.format("{}, incomplete", text)).alias("text"),
        ((n >= MIN_SAMPLES).fill_null(True) & time.is_complete()).alias("sampled"),
    )
    judged = time.complete(points)
    scale = alt.Scale(zero=True, nice=True) if top is None else alt.Scale(domain=[0, top / divisor])
    if top is None and largest(points, "y") > largest(judged, "y"):
        highest = max(largest(judged, "y"), (objective or 0.0) / divisor)
        scale = alt.Scale(domain=[0, highest or (0.01 if percent else largest(points, "y"))], nice=True)
    if clip_outliers and (ceiling := _ceiling(judged)) is not None:
        scale = alt.Scale(domain=[0, ceiling], nice=True, clamp=False)
        unit = f"{unit or ''} (max {to_text(largest(time.complete(frame), value))})"
    form = "%" if percent else alt.Undefined
    axis = whole_numbers(to_text is formatting.count, tickCount=5, minExtent=Y_AXIS_PX, format=form)
    y = alt.Y("y:Q", title=unit, scale=scale, axis=axis)
    layers = _lines(break_at_gaps(points, name, time.bucket_s), name, shown, highlighted, time, y)
    if objective is not None:
        rule = alt.Chart(pl.DataFrame({"slo": [objective / divisor]}))
        layers.append(rule.mark_rule(strokeDash=[4, 4], color=colors.RULE).encode(y=alt.Y("slo:Q")))
    layers += time.mark_lines()
    layers.append(_shared_tooltip(points, name, list(shown), time, y))
    return Layers(layers, height=height, usermeta=OVER_TIME)


def _lines(
    points: pl.DataFrame,
    name: str,
    shown: Mapping[str, str],
    highlighted: Collection[str],
    time: TimeRange,
    y: alt.Y,
) -> list[alt.Chart]:
    """Layers of the lines: the faded line through all points, the full line through points with enough samples, and dots."""
    bold = [n for n in shown if n in highlighted]
    drawn = {n: color if not bold or n in bold else colors.UNNAMED for n, color in shown.items()}
    width = alt.StrokeWidthValue(1.8)
    if bold or colors.TOTAL in shown:
        is_thick = alt.FieldOneOfPredicate(field=name, oneOf=[*bold, colors.TOTAL])
        width = alt.StrokeWidthValue(1.0 if bold else 1.5).condition(test=is_thick, value=2.8)

    def layer(data: pl.DataFrame, opacity: float) -> alt.Chart:
        opacities = alt.OpacityValue(opacity)
        if bold:
            is_bold = alt.FieldOneOfPredicate(field=name, oneOf=bold)
            opacities = alt.OpacityValue(opacity * REST_OPACITY).condition(test=is_bold, value=opacity)
        return alt.Chart(to_wall_time(data, time.zone, "at")).encode(
            x=time.axis(fixed=True),
            y=y,
            color=colors.scale(name, drawn),
            opacity=opacities,
            strokeWidth=width,
        )

    sampled = points.with_columns(pl.when("sampled").then("y").alias("y"))
    lines = [] if points["sampled"].all() else [layer(points, FADED)]
    # A layer without numbers would make Vega warn of an infinite extent.
    if sampled["y"].drop_nulls().len():
        lines.append(layer(sampled, 1.0))
    layers = [line.mark_line(invalid="break-paths-show-path-domains", clip=True) for line in lines]
    for is_sampled, opacity in ((True, 1.0), (False, FADED)):
        dots = points.filter("isolated", pl.col("sampled") == is_sampled)
        if not dots.is_empty():
            layers.append(layer(dots, opacity).mark_point(clip=True, aria=False))
    return layers


def _ceiling(points: pl.DataFrame) -> float | None:
    """The end of the axis if outliers would flatten the lines, else None."""
    p95, maximum = points["y"].quantile(0.95), largest(points, "y")
    return p95 * 1.5 if p95 is not None and 0 < p95 < maximum / OUTLIER_FACTOR else None


def break_at_gaps(points: pl.DataFrame, series: str, bucket_s: int) -> pl.DataFrame:
    """The points with the column `isolated` (no neighbour on either side), and a NULL after each point before a gap.

    A point with enough samples between points without is isolated, too.
    """
    step = pl.duration(seconds=bucket_s)
    ordered = points.sort(series, "at").with_columns(
        (pl.col("at").shift(-1).over(series) > pl.col("at") + step).fill_null(True).alias("ends"),
        (pl.col("at").shift(1).over(series) < pl.col("at") - step).fill_null(True).alias("begins"),
    )
    ordered = ordered.with_columns(
        (
            pl.col("sampled")
            & (~pl.col("sampled").shift(-1).over(series).fill_null(False) | pl.col("ends"))
            & (~pl.col("sampled").shift(1).over(series).fill_null(False) | pl.col("begins"))
        ).alias("lonely")
    )
    breaks = ordered.filter("ends").with_columns(
        pl.col("at") + step,
        pl.lit(None, dtype=pl.Float64).alias("y"),
        pl.lit(None, dtype=pl.String).alias("text"),
        pl.lit(False).alias("begins"),
        pl.lit(False).alias("lonely"),
        pl.lit(True).alias("sampled"),
    )
    points = pl.concat([ordered, breaks]).sort(series, "at")
    isolated = (pl.col("begins") & pl.col("ends")) | pl.col("lonely")
    return points.select("at", series, "y", "text", "sampled", isolated.alias("isolated"))


def _shared_tooltip(
    points: pl.DataFrame, series: str, names: list[str], time: TimeRange, y: alt.Y
) -> alt.Chart:
    """Invisible points. The one nearest to the pointer has the tooltip with the values of all series, and is clicked.

    Vega evaluates the tooltip and the description of each point before it draws, hundreds in a chart. So both are finished values of
    the data, and not expressions over several fields.
    """
    points = to_wall_time(
        points.select("at", pl.col("at").dt.epoch("ms").alias("t"), series, "y", "text"), time.zone, "at"
    ).with_columns(pl.col("at").dt.strftime("%Y-%m-%d %H:%M:%S").alias("clock"))
    wide = points.pivot(on=series, on_columns=names, index=["t", "clock"], values="text")
    # In the specification, because Streamlit has no data of lookups.
    rows = [
        {"t": t, "tip": {"time": clock} | {n or "value": v or formatting.UNKNOWN for n, v in zip(names, values, strict=True)}}
        for t, clock, *values in wide.iter_rows()
    ]  # fmt: skip
    label = pl.format("{} {}: {}", "clock", series, "text").alias("label")
    found: alt.Chart = (
        alt.Chart(points.select("at", "t", series, "y", label))
        .mark_point(clip=True, **POINT_OF_LINE)
        .transform_lookup(lookup="t", from_=alt.LookupData(data=alt.InlineData(values=rows), key="t", fields=["tip"]))
        .encode(x=time.axis(fixed=True), y=y, tooltip=alt.Tooltip("tip:N"), description=alt.Description("label:N"))
        .add_params(clickable("t", series, nearest=True))
    )  # fmt: skip
    return found


def time_bars(
    frame: pl.DataFrame,
    value: str,
    time: TimeRange,
    *,
    series: str,
    series_colors: Mapping[str, str],
    unit: str | None,
    height: int = HEIGHT,
) -> Drawing:
    """Bars of `value` over `at`, stacked in the order of the colours. Incomplete ones are faded and do not set the scale.

    Without a `unit`, the values are counts.
    """
    shown = colors.present(series_colors, frame, series)
    # The stack has the order of the colours, so that a kind is at the same place in every bar.
    rank = {name: i for i, name in enumerate(shown)}
    stacked = (
        time.with_until(frame.with_columns(time.is_complete().alias("complete")))
        .with_columns(
            pl.col(series).replace_strict(rank, return_dtype=pl.Int32).alias("rank"),
            pl.col(value).fill_null(0),
        )
        .sort("at", "rank")
        .with_columns(pl.col(value).cum_sum().over("at").alias("top"))
        .with_columns((pl.col("top") - pl.col(value)).alias("bottom"))
    )
    highest = largest(stacked.filter("complete"), "top")
    scale = (
        alt.Scale(domainMax=highest, nice=True) if 0 < highest < largest(stacked, "top") else alt.Undefined
    )
    axis = whole_numbers(unit is None, tickCount=5, minExtent=Y_AXIS_PX)
    bars = alt.Chart(time.extend(stacked, low="bottom", high="top")).mark_rect(stroke=None, clip=True)
    bars = bars.add_params(clickable("t", series))
    bars = bars.encode(
        x=time.axis(),
        x2=alt.X2("until:T"),
        y=alt.Y("bottom:Q", title=unit, scale=scale, axis=axis),
        y2=alt.Y2("top:Q"),
        color=colors.scale(series, shown),
        opacity=faded(),
        tooltip=[
            time_tooltip("begin", "from"),
            *tooltips(f"{series}:N", (f"{value}:Q", unit or value, ",.4~g")),
        ],
    )
    return Layers([bars, *time.mark_lines()], height=height, usermeta=OVER_TIME)
