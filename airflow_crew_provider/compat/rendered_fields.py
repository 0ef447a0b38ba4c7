"""What Airflow shows of a task's rendered template fields: to everybody who may see the DAG, even without its XComs.

Airflow stores the first 4,096 characters of each field; `template_fields_renderers` only changes how they look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_crew_provider.api.values import rendered


class HidesRendered:
    """A base class of operators with fields that show, once rendered, what not everybody may read."""

    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        # Called for mapped tasks too, unlike `render_template_fields`.
        super()._do_render_template_fields(parent, *args, **kwargs)  # type: ignore[misc]
        if parent is self:
            self.hide_rendered()

    def hide_rendered(self) -> None:
        """Hide it from Airflow, which has just rendered the fields."""
        raise NotImplementedError


class HidesRecords(HidesRendered):
    """A base class of operators: once rendered, their fields with records show one line instead of a draft."""

    fields_with_records: Sequence[str] = ()

    def hide_rendered(self) -> None:
        """Replace the records in the fields by mappings that Airflow shows as one line."""
        for name in self.fields_with_records:
            setattr(self, name, rendered(getattr(self, name)))
