"""Draws a trace, from a DAG run to the model calls of a crew, from the spans that a collector received.

python -m scripts.trace_picture [file]      needs the [crewai] and [dev] extras
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from html import escape
from pathlib import Path

from scripts.demo_stack import CREWS, ROOT
from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from scripts.stack.collector import Collector, ReceivedSpan

FILE = ROOT / "docs" / "images" / "trace.svg"
DAG_ID = "crew_review"
COLOURS = {
    "airflow": "#017cee",
    "airflow-crew-provider": "#00ad46",
    "airflow-crew-service": "#e07b39",
    "crewai": "#8a5cc7",
}
WIDTH, ROW, TEXT, TIME = 1000, 17, 300, 70
Row = tuple[ReceivedSpan, int]  # a span and its depth


def play(collector: Collector) -> tuple[DagRun, str]:
    """Run the DAG with a real crew, a review and a restart of the service; return the run and its trace's id."""
    with ProcessGroup() as group:
        service = CrewService(CREWS["crewai"], env=collector.environment, group=group).start()
        airflow = AirflowStack(
            dags=[ROOT / "example_dags"],
            connections={"crew_default": service.connection},
            env={**collector.environment, "AIRFLOW__TRACES__OTEL_ON": "True", "OTEL_SERVICE_NAME": "airflow"},
            group=group,
        ).start_all()
        run = airflow.api.trigger(DAG_ID, {"topic": "salt"})
        review = run.wait_for_review()
        wait_until(lambda: collector.named("segment"), "the span of the first segment")
        service.kill()
        service.start()
        run.answer(review, "approve", human_feedback="")
        run.wait_for("success")
        wait_until(lambda: len(collector.named("execute crew")) == 2, "the crew's spans of the second segment")
        wait_until(lambda: len(collector.named("segment")) == 2, "the second segment")
        [whole] = wait_until(lambda: collector.named(f"dag_run.{DAG_ID}"), "the span of the DAG run")
        return run, whole.trace_id


def rows(spans: list[ReceivedSpan]) -> list[Row]:
    """Return the spans of one trace in tree order; a span whose parent was not received is at the top level."""
    known = {span.span_id for span in spans}
    in_turn = sorted(spans, key=lambda span: span.begin)

    def below(parent: str, depth: int) -> Iterator[Row]:
        for span in in_turn:
            if span.parent_id == parent:
                yield span, depth
                yield from below(span.span_id, depth + 1)

    tops = [span for span in in_turn if span.parent_id not in known]
    return [row for top in tops for row in [(top, 0), *below(top.span_id, 1)]]


def drawn(found: list[Row]) -> str:
    """Return the drawing as SVG."""
    begin, end = min(span.begin for span, _ in found), max(span.end for span, _ in found)
    scale = (WIDTH - TEXT - TIME) / (end - begin)
    lines = [_line(row, number, begin, scale) for number, row in enumerate(found)]
    height = ROW * (len(found) + 2)
    place = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {place}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *_legend(), *lines, "</svg>\n"])


def _legend() -> Iterator[str]:
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = TEXT + number * 155
        yield f'<rect x="{x}" y="5" width="10" height="10" fill="{colour}"/><text x="{x + 15}" y="14">{name}</text>'


def _line(row: Row, number: int, begin: float, scale: float) -> str:
    span, depth = row
    y, x, seconds = ROW * (number + 1.6), TEXT + (span.begin - begin) * scale, span.end - span.begin
    shown = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    name = span.name + "".join(f" {span.attributes[key]}" for key in ("crewai.task.name",) if key in span.attributes)
    wide = max(2.0, seconds * scale)
    return (
        f'<text x="{8 + 16 * depth}" y="{y + 11:.1f}">{escape(name)}</text>'
        f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{wide:.1f}" height="{ROW - 5}" fill="{COLOURS[_kind(span)]}"/>'
        f'<text x="{x + wide + 4:.1f}" y="{y + 11:.1f}" fill="#666" font-size="10">{shown}</text>'
    )


def _kind(span: ReceivedSpan) -> str:
    if span.service == "airflow":
        return "airflow-crew-provider" if "url.template" in span.attributes else "airflow"
    return "crewai" if "crewai.execution_uuid" in span.attributes else "airflow-crew-service"


def main(file: Path) -> None:
    with closing(Collector()) as collector:
        _, trace = play(collector)
        file.write_text(drawn(rows([span for span in collector.spans if span.trace_id == trace])), "utf-8")
    print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
