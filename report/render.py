"""A report as JSON, Markdown and one HTML page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from report import plots, tables
from report.plots import Plot
from report.schema import Report
from report.tables import Table
from report.verdict import verdicts

Section = tuple[str, list[Table], list[Plot]]


def write(report: Report, path: Path) -> list[Path]:
    """`path` with the endings .json, .md and .html; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {
        ".json": report.model_dump_json(exclude_none=True) + "\n",
        ".md": markdown(report),
        ".html": html(report),
    }
    files = [path.with_name(path.name + ending) for ending in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text, encoding="utf-8")
    return files


def read(path: Path) -> Report:
    """A report that was written before. Raises pydantic's ValidationError for anything else."""
    return Report.model_validate_json(path.read_bytes())


def join(reports: Sequence[Report]) -> Report:
    """One report of several from one machine, which is that of the first."""
    first = reports[0]
    return first.model_copy(
        update={
            "command": "\n".join(dict.fromkeys(one.command for one in reports)),
            "benches": tuple(bench for one in reports for bench in one.benches),
            "loads": tuple(load for one in reports for load in one.loads),
            "notes": tuple(dict.fromkeys(note for one in reports for note in one.notes)),
        }
    )


def _sections(report: Report) -> Iterator[Section]:
    for bench in report.benches:
        title = f"{bench.model}: {bench.device}, {bench.dtype}, threads: {bench.threads}"
        yield title, list(tables.bench_tables(bench)), list(plots.bench_plots(bench))
    for load in report.loads:
        title = f"{load.scenario} over HTTP, {load.arrivals}"
        yield title, list(tables.load_tables(load)), list(plots.load_plots(load))


def markdown(report: Report) -> str:
    """Verdicts and tables."""
    parts = ["# Eager or compiled", ""]
    parts += [f"- **{what}**: {verdict}" for what, verdict in verdicts(report)]
    parts += ["", *(f"{note}\n" for note in report.notes)]
    for title, found, _ in _sections(report):
        parts += [f"## {title}", ""]
        for table in found:
            parts += [f"### {table.title}", "", _markdown_table(table), "", table.note, ""]
    parts += ["## Machine", "", _markdown_table(tables.machine_table(report.machine)), ""]
    parts += [f"{report.created:%Y-%m-%d %H:%M} UTC", "", "```", report.command, "```", ""]
    return "\n".join(parts)


def _markdown_table(table: Table) -> str:
    rows = [table.header, ("---",) * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(map(_markdown_cell, row)) + " |" for row in rows)


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def html(report: Report) -> str:
    """Verdicts, charts and tables on one page."""
    style = resources.files("report").joinpath("page.css").read_text(encoding="utf-8")
    body = "".join(_html_parts(report))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Eager or compiled</title><style>{style}</style></head><body>{body}</body></html>\n"
    )


def _html_parts(report: Report) -> Iterator[str]:
    machine = report.machine
    yield "<header><h1>Eager or compiled</h1>"
    where = [machine.gpu or machine.cpu]
    where += [f"torch {version}" for name, version in machine.versions.items() if name == "torch"]
    yield f"<p>{escape(', '.join(where))}</p>"
    for what, verdict in verdicts(report):
        yield f'<p class="verdict"><b>{escape(what)}</b>{escape(verdict)}</p>'
    yield from (f"<p>{escape(note)}</p>" for note in report.notes)
    yield "</header>"
    for title, found, drawn in _sections(report):
        yield f'<section><h2>{escape(title)}</h2><div class="plots">'
        for plot in drawn:
            yield f"<figure><h3>{escape(plot.title)}</h3>{plot.svg}"
            yield f"<figcaption>{_prose(plot.caption)}</figcaption></figure>"
        yield "</div>"
        yield from map(_html_table, found)
        yield "</section>"
    yield f"<section>{_html_table(tables.machine_table(machine))}"
    yield f"<p>{report.created:%Y-%m-%d %H:%M} UTC</p><pre>{escape(report.command)}</pre></section>"


def _prose(text: str) -> str:
    """With what is between backticks as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<h3>{escape(table.title)}</h3><div class="wide"><table><tr>{head}</tr>{rows}</table>'
        f"</div><p>{_prose(table.note)}</p>"
    )
