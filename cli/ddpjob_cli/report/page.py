"""A report as one HTML file: figures, tables and words, nothing from elsewhere.

Why apart: what is shown comes in as a value, so a test compares the page with it. Must not: read files or ask anybody.
"""

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from ddpjob_api.codec import render
from ddpjob_api.metrics import PHASES
from ddpjob_api.report import Failure, InEffect
from ddpjob_cli import table
from ddpjob_cli.explain.finding import Finding
from ddpjob_cli.local import words
from ddpjob_cli.report import figures, series
from ddpjob_cli.report.data import ReportData

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#111827;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem;border-bottom:1px solid #e5e7eb;padding-bottom:.2rem}
.sub{color:#6b7280;margin:0 0 1rem}.facts{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:1rem 0}
.facts div{min-width:6rem}.facts b{display:block;font-size:1.25rem}.facts span{color:#6b7280;font-size:.85rem}
svg{width:100%;height:auto;display:block}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.25rem .75rem .25rem 0;vertical-align:top;border-bottom:1px solid #f3f4f6}th{color:#6b7280}
td.n,th.n{text-align:right}li{margin:.3rem 0}li b{display:inline-block;min-width:3.5rem}li i{color:#374151;font-style:normal}
.stops,.fails{color:#b3261e}.slows{color:#b45309}.note{color:#1d4ed8}.fine{color:#047857}
pre{background:#f9fafb;padding:.75rem;overflow-x:auto;font-size:.85rem}.none{color:#6b7280}
"""


def page(data: ReportData) -> str:
    """The whole file."""
    seen = data.seen
    body = "\n".join(
        [
            f"<h1>{escape(seen.name)}: {escape(seen.state or 'unseen')}</h1>",
            f'<p class="sub">{escape(seen.place)} · made {escape(data.made_at)}</p>',
            facts(data),
            said(data.findings),
            *curves(data),
            *settings(data),
            *gaps(data.gaps),
        ]
    )
    title = f"{escape(seen.name)} – DDPJob report"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'


def numbers(data: ReportData) -> dict[str, Any]:
    """What the figures show, for programs."""
    rows = series.joined(data.histories)
    return {
        **table.facts(data.seen),
        "findings": [finding.json() for finding in data.findings],
        "curves": {
            "loss": series.loss(rows),
            "samplesPerSecond": series.throughput(rows),
            "step": series.steps(rows),
        },
        "ranks": [
            {"rank": one.rank, "seconds": dict(zip(PHASES, one.seconds, strict=True))}
            for one in series.times(rows)
        ],
        "incidents": [render(failure) for failure in data.incidents],
        "result": dict(data.result),
        "notInThisReport": list(data.gaps),
    }


def facts(data: ReportData) -> str:
    """The numbers that matter first."""
    seen = data.seen
    rows = series.joined(data.histories)
    ranks = len(series.times(rows))
    begin, end = span(rows)
    found = [
        ("step", f"{seen.step}" + (f" of {seen.total_steps}" if seen.total_steps else "")),
        ("loss", table.number(seen.loss)),
        ("ranks", f"{ranks} on {len(rows)} node{'s' if len(rows) != 1 else ''}" if ranks else ""),
        ("time", words.duration(end - begin) if end > begin else ""),
        ("samples/s", table.number(mean_rate(rows)) if rows else ""),
        ("restarts", str(seen.restarts)),
        ("disruptions", str(seen.disruptions) if seen.disruptions else ""),
        ("goodput", table.percent(seen.goodput_percent) if seen.goodput_percent is not None else ""),
        ("DDP efficiency", table.percent(seen.ddp_efficiency_percent)),
        *(
            (name, plain(value))
            for name, value in list(data.result.items())[:6]
            if name not in {"loss", "steps", "ranks", "parameterHash"}
        ),
    ]
    cells = "".join(
        f"<div><span>{escape(name)}</span><b>{escape(value)}</b></div>"
        for name, value in found
        if value and value != table.UNKNOWN
    )
    return f'<div class="facts">{cells}</div>'


def said(findings: Sequence[Finding]) -> str:
    """What `explain` says."""
    items = []
    for finding in findings:
        word = finding.weight.word
        do = f"<br><b></b>→ <i>{escape(finding.do)}</i>" if finding.do else ""
        where = f' <span class="none">[{escape(finding.where)}]</span>' if finding.where else ""
        items.append(f'<li><b class="{word}">{word}</b>{escape(finding.what)}{where}{do}</li>')
    return f'<ul style="list-style:none;padding:0">{"".join(items)}</ul>'


def curves(data: ReportData) -> Iterator[str]:
    """The figures, each where there is something to show."""
    rows = series.joined(data.histories)
    begin, end = span(rows)
    if end <= begin:
        yield '<h2>Over time</h2><p class="none">Nothing was recorded: the job made no step, or its pods are gone.</p>'
        yield incident_table(data.incidents, 0.0)
        return
    loss, rate, steps = series.loss(rows), series.throughput(rows), series.steps(rows)
    if loss:
        yield "<h2>Loss</h2>" + figures.lines(
            series.apart(loss, rows), label="loss", span=(begin, end), incidents=data.incidents, log=True
        )
    for title, label, points in (("Throughput", "samples per second", rate), ("Progress", "step", steps)):
        if any(value for _, value in points):
            yield f"<h2>{title}</h2>" + figures.lines(
                [points], label=label, span=(begin, end), incidents=data.incidents
            )
    if not loss and not any(value for _, value in (*rate, *steps)):
        yield '<h2>Over time</h2><p class="none">No step was recorded.</p>'
    yield "<h2>Incidents</h2>" + figures.timeline(series.lives(rows), data.incidents, (begin, end))
    yield incident_table(data.incidents, begin)
    if data.seen.time is not None and data.seen.time.total:
        said = f'<p class="none">{escape(words.uses(data.seen.time))}</p>'
        yield "<h2>What the time of the job went to</h2>" + figures.uses(data.seen.time) + said
    times = series.times(rows)
    if any(any(one.seconds) for one in times[: figures.MAX_RANKS]):
        more = (
            f"<p class=none>The first {figures.MAX_RANKS} of {len(times)} ranks.</p>"
            if len(times) > figures.MAX_RANKS
            else ""
        )
        yield "<h2>Where the time of each rank went</h2>" + figures.bars(times) + more + time_table(times)


def incident_table(incidents: Sequence[Failure], begin: float) -> str:
    if not incidents:
        return '<p class="none">None.</p>'
    lines = []
    for number, failure in enumerate(incidents, start=1):
        at = figures.moment(failure.at)
        when = words.duration(at - begin) if at is not None and at >= begin > 0 else failure.at or ""
        place = " on ".join(part for part in (failure.pod or "", failure.host_node or "") if part)
        lines.append((str(number), when, failure.reason.value, words.in_short(failure), place))
    named = any(place for *_, place in lines)  # a local run has no pods
    heads = ("", "after", "reason", "who and what", *(["pod"] if named else []))
    return f"<table>{row('th', heads)}{''.join(row('td', cells[: len(heads)]) for cells in lines)}</table>"


def row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def time_table(times: Sequence[series.RankTime]) -> str:
    """The same as numbers, in percent."""
    shown = [index for index in range(len(series.SEGMENTS)) if any(one.seconds[index] for one in times)]
    head = "<th>rank</th>" + "".join(f'<th class="n">{series.SEGMENTS[index]}</th>' for index in shown)
    lines = []
    for one in times[: figures.MAX_RANKS]:
        total = sum(one.seconds) or 1.0
        cells = "".join(f'<td class="n">{100 * one.seconds[index] / total:.1f} %</td>' for index in shown)
        lines.append(f"<tr><td>{one.rank}</td>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def settings(data: ReportData) -> Iterator[str]:
    """What was in effect, and in what it ran."""
    ddp = data.seen.ddp
    if ddp is not None:
        yield "<h2>DDP settings in effect</h2>" + pairs(in_effect(ddp))
        notes = [words.override(item) for item in ddp.overrides] + [
            f"warning: {text}" for text in ddp.warnings
        ]
        if notes:
            yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"
    if data.environment:
        yield "<h2>Environment</h2>" + pairs(list(data.environment.items()))
    if data.spec:
        yield f"<h2>The resource</h2><pre>{escape(data.spec)}</pre>"


def in_effect(ddp: InEffect) -> list[tuple[str, str]]:
    """Each setting that was read back."""
    found = []
    for shape in words.SETTINGS:
        value = getattr(ddp, shape.field.name)
        if value is None and shape.name == "bucketCapMB":
            value = "torch's default (25, the first bucket 1)"
        if value is not None:
            found.append((shape.name, words.plain(value)))
    if ddp.bucket_bytes:
        found.append(("buckets", " + ".join(words.size(number) for number in ddp.bucket_bytes)))
    return found


def pairs(items: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in items)
    return f"<table>{lines}</table>"


def gaps(sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        items = "".join(f"<li>{escape(text)}</li>" for text in sentences)
        yield f"<h2>Not in this report</h2><ul>{items}</ul>"


def span(rows: series.Rows) -> tuple[float, float]:
    """First and last moment; equal where there is none."""
    moments = [row.at for mine in rows.values() for row in (mine[0], mine[-1])]
    return (min(moments), max(moments)) if moments else (0.0, 0.0)


def mean_rate(rows: series.Rows) -> float | None:
    """Samples per second over the whole run, starts and restarts included."""
    begin, end = span(rows)
    made = sum(one.samples for mine in rows.values() for one in mine[-1].ranks)
    return made / (end - begin) if end > begin and made else None


def plain(value: object) -> str:
    return words.plain(value) if isinstance(value, (int, float, str)) else json.dumps(value)[:60]
