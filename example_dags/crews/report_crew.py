"""A crew that reads a PDF, draws a chart of its figures, and writes a report, which a person reviews with the chart.

Serve it with the extras `crewai` and `files` of `airflow-crew-service`:

    airflow-crew-service serve --crew example_dags/crews/report_crew.py:report_crew
"""

from __future__ import annotations

import os
from pathlib import Path

from crewai import Agent, Crew, Task
from crewai.tools import tool
from offline_model import OfflineModel
from PIL import Image, ImageDraw, ImageFont

INK, BAR, WIDTH, ROW, LEFT = "#27272a", "#0e7490", 640, 56, 120


@tool
def draw_chart(title: str, figures: dict[str, int]) -> str:
    """Draw a bar chart of figures by name."""
    image = Image.new("RGB", (WIDTH, ROW * (len(figures) + 1) + 24), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(20)
    draw.text((24, 20), title, INK, ImageFont.load_default(24))
    longest = (WIDTH - LEFT - 90) / max(figures.values())
    for row, (name, figure) in enumerate(figures.items(), 1):
        top, right = ROW * row + 12, LEFT + figure * longest
        draw.text((24, top + 8), name, INK, font)
        draw.rounded_rectangle((LEFT, top, right, top + 38), 4, BAR)
        draw.text((right + 10, top + 8), str(figure), INK, font)
    image.save(Path(os.environ["CREW_FILES_DIR"], "chart.png"))  # what is here becomes a file of the execution
    return "The chart is in chart.png."


def report_crew() -> Crew:
    analyst = Agent(
        role="Analyst",
        goal="Explain figures to people in a hurry",
        backstory="You draw before you write.",
        llm=OfflineModel(model="offline"),  # use your own model here, such as LLM(model="openai/gpt-5")
        tools=[draw_chart],
    )
    report = Task(
        name="report",
        description="Chart the figures in the file, and write a report about them.\nFile: figures",
        expected_output="A report in Markdown",
        agent=analyst,
        human_input=True,
        output_file="report.md",
    )
    return Crew(agents=[analyst], tasks=[report])
