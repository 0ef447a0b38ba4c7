"""A file of an execution, as its crew gets it."""

from __future__ import annotations

from crewai_files import FilePath


class ExecutionFile(FilePath):
    """Keeps no content, which would be stored with a Flow's state each time a method ends."""

    def read(self) -> bytes:
        return self.path.read_bytes()

    async def aread(self) -> bytes:
        return self.path.read_bytes()
