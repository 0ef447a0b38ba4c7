"""Reads the JSON files of agents; crews and Flows are read by documented functions."""

from __future__ import annotations

from crew_service.crewai.internals import Seam

DECLARED = Seam(
    "agents described in JSON are refused",
    {
        "crewai.project:load_agent_from_definition": "no documented function reads an agent's file",
        "crewai.project:strip_jsonc_comments": "only the content tells whether a file describes an agent or a crew",
    },
    returns={"load_agent_from_definition": "tuple", "strip_jsonc_comments": "str"},
)


def without_comments(text: str) -> str:
    return text if DECLARED.missing else str(DECLARED["strip_jsonc_comments"](text))
