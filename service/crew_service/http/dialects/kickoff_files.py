"""The files that a kickoff names, as `input_files` or in the inputs: found once, then checked, compared and stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastapi import HTTPException

from crew_service.engine.crew import Crew, InputFile
from crew_service.engine.file_inputs import REFUSED, GivenFile, Path, replaced, source_of
from crew_service.engine.files import MOST_FILES, StoredFile, UnknownFile, id_in
from crew_service.http import bodies
from crew_service.http.dialects.request_models import KickoffBody, camel, snake
from crew_service.settings import FileLimits

FIELDS = frozenset(KickoffBody.model_fields)
TEXTS = frozenset(name for name in FIELDS if name.endswith("Url")) | {"restoreFromStateId", "continueFrom"}
WEB = ("https://", "http://")
NOT_FETCHED = StoredFile("", 0, "", "")  # stands for a file that is fetched only if nothing else is wrong
INPUT_FILES, TWIN = "input_files", "inputFiles"
Find = Callable[[Collection[str]], dict[str, StoredFile]]  # returns the caller's own files among those with these ids


def form_body(texts: Mapping[str, bytes], files: Mapping[str, StoredFile]) -> dict[str, Any]:
    """Return the body of a kickoff that was sent as a form.

    :raises bodies.BadBody: it is not valid
    """
    body: dict[str, Any] = {name: _value(name, raw) for name, raw in texts.items()}
    if not files:
        return body
    if twice := next((name for name in (INPUT_FILES, TWIN) if body.get(name) is not None), None):
        raise bodies.BadBody(f"A form has its files either as its own parts or in {twice!r}.")
    return {**body, INPUT_FILES: {name: file.id for name, file in files.items()}}


def is_field(name: str) -> bool:
    return bool({name, camel(name), snake(name)} & FIELDS)


def _value(name: str, raw: bytes) -> Any:
    try:
        if camel(name) in TEXTS:
            return raw.decode()
        return None if raw.strip() == b"null" else bodies.parse(raw, None)
    except UnicodeDecodeError:
        raise bodies.BadBody(f"The part {name!r} is not valid UTF-8.") from None
    except bodies.BadBody as problem:
        raise bodies.BadBody(f"In the part {name!r}: {problem}") from None


@dataclass(frozen=True)
class KickoffFiles:
    """The files of a kickoff's body.

    :param named: addresses by name, unchecked
    :param inside: those in the inputs
    :param found: the caller's files by id, including used ones, or by a fetched address
    """

    named: dict[str, Any]
    inside: list[GivenFile]
    found: dict[str, StoredFile]

    @classmethod
    def of(cls, body: dict[str, Any], crew: Crew, find: Find) -> KickoffFiles:
        named: dict[str, Any] = next(
            (body[name] for name in (INPUT_FILES, TWIN) if isinstance(body.get(name), dict)), {}
        )
        inputs = body.get("inputs")
        inside = crew.file_inputs.given(inputs) if isinstance(inputs, dict) else []
        addresses = [*named.values(), *(each.address for each in inside)]
        ids = {file_id for each in addresses if isinstance(each, str) and (file_id := id_in(each))}
        return cls(named, inside, find(ids))

    def canonical(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body with hashes instead of addresses, by which repeated requests are recognized."""
        if not (self.named or self.inside):
            return body
        others = {name: value for name, value in body.items() if name not in (INPUT_FILES, TWIN)}
        hashes = {name: file.sha256 if (file := self._file(each)) else each for name, each in self.named.items()}
        inside = {each.path: source_of(file.sha256) for each in self.inside if (file := self._file(each.address))}
        return {**others, "inputs": replaced(others.get("inputs") or {}, inside), INPUT_FILES: hashes}

    @property
    def web(self) -> dict[str, str]:
        """The other web addresses, each with the name of its input."""
        addresses = [*self.named.items(), *((each.name, each.address) for each in self.inside)]
        return {
            each: name
            for name, each in addresses
            if isinstance(each, str) and each.lower().startswith(WEB) and not id_in(each)
        }

    def fetched(self, files: Mapping[str, StoredFile]) -> KickoffFiles:
        """Return it with the files that its web addresses have."""
        return replace(self, found={**self.found, **files})

    def checked(
        self, inputs: dict[str, Any], crew: Crew, limits: FileLimits, bad_request: int
    ) -> tuple[dict[str, Any], list[InputFile]]:
        """Return the inputs to store, and the files."""
        if self.named:
            self._check_names(inputs, crew, bad_request)
        files: list[InputFile] = []
        values: dict[Path, Any] = {}
        for place in self.inside:
            if (file := self._file(place.address)) is None:
                raise HTTPException(bad_request, REFUSED.format(name=place.name))
            files.append(file.of_input(place.name, in_inputs=True))
            values[place.path] = source_of(file.sha256)
        inputs = replaced(inputs, values)
        for name, address in self.named.items():
            if (file := self._file(address)) is None:
                raise UnknownFile(name)
            files.append(file.of_input(name, in_inputs=crew.file_inputs.are_in_inputs))
            if crew.file_inputs.are_in_inputs:
                inputs = {**inputs, name: source_of(file.sha256)}
        if len(files) > MOST_FILES or sum(each.size for each in files) > limits.of_execution:
            raise HTTPException(413, too_much(limits))
        return inputs, files

    def _file(self, address: Any) -> StoredFile | None:
        return self.found.get(id_in(address) or address) if isinstance(address, str) else None

    def _check_names(self, inputs: dict[str, Any], crew: Crew, bad_request: int) -> None:
        if crew.file_inputs.problem:
            raise HTTPException(bad_request, crew.file_inputs.problem)
        for name in self.named:
            if name in inputs:
                raise HTTPException(bad_request, f"{name!r} is given both as an input and as a file.")
            if crew.file_inputs.are_in_inputs and name not in crew.file_inputs.names:
                known = ", ".join(crew.file_inputs.names)
                raise HTTPException(bad_request, f"The input {name!r} takes no file; these do: {known}.")


def too_much(limits: FileLimits) -> str:
    return (
        f"The files of an execution may have {limits.of_execution} bytes together, and there may be at most "
        f"{MOST_FILES}. Nothing was started."
    )
