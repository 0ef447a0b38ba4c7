"""Events of OpenLineage: what its specification, version 2-0-2, demands of them, and the facet of a crew in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]
CREW_FACET: Json = json.loads((Path(__file__).parents[2] / "docs" / "crew-run-facet.json").read_text("utf-8"))
URI: Json = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*:.+"}
NAME: Json = {"type": "string", "minLength": 1}
UUID: Json = {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
TIME: Json = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


FACETS: Json = {"type": "object", "additionalProperties": _object(_producer=URI, _schemaURL=URI)}
DATASET: Json = _object(namespace=NAME, name=NAME)
DATASET["properties"]["facets"] = FACETS
EVENT: Json = _object(
    eventType={"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
    eventTime=TIME,
    producer=URI,
    schemaURL={"pattern": "^https://openlineage[.]io/spec/2-0-2/OpenLineage[.]json#/[$]defs/RunEvent$"},
    run=_object(runId=UUID, facets=FACETS),
    job=_object(namespace=NAME, name=NAME, facets=FACETS),
)
EVENT["properties"] |= {name: {"type": "array", "items": DATASET} for name in ("inputs", "outputs")}


def crew_facet_of(event: str) -> Json:
    """Validate an event as it is sent, and return the facet of the crew without what each facet has."""
    read = json.loads(event)
    Draft202012Validator(EVENT).validate(read)
    facet = read["run"]["facets"]["crew"]
    Draft202012Validator(CREW_FACET).validate(facet)
    return {name: value for name, value in facet.items() if not name.startswith("_")}
