"""One form for every value that one process of a crew passes to another: states, results, task outputs and answers.

A value is written, read back and compared at that moment, while the original still exists. What is read back is equal
if it has the same type and, encoded again, gives the same text; `==` is not asked, because a class may define it
freely. Everything else is refused with the place of the first part that would not come back, such as `client` or
`reports[2].author`, and the text that would remain of it.

Encoded is JSON text in ASCII, whatever the value contains, so it passes every channel and database unchanged:

* plain data as itself, and a dict with string keys as `{"dict": ...}`;
* a class by its path, `module:Name`, with one of
    `items` (a container), `value` (a scalar that pydantic converts), `form` (see `FORMS`), `member` (of an enum),
    `base` and `attributes` (a subclass of a built-in type), `attributes` alone (an object without its own way of being
    copied), `state` (a model: its fields by name, excluded and private ones included), `fields` (likewise in JSON);
* `{"type": path}` for a class that is itself the value;
* `{"shared": number, "value": ...}` for an object that occurs again, as `{"same": number}`; without one, a value is
    written as by earlier releases, which cannot read this.

A stored value cannot make the reading process do anything but build objects: a path is only resolved to a class in a
loaded module or in a part of a loaded package, without evaluating attributes; no method of a class runs but `__new__`
of a built-in type, or what pydantic does for a scalar or for `fields`. There is no pickle.

A model is built from its fields by name, so aliases, validators and serializers play no part. Fields that its class
has gained since get their defaults; those that it has lost are dropped.

What can change and occurs several times in a value, or contains itself, is one object again. Scalars, what is in
`fields`, and objects that two values share, become copies.

No other module of this package dumps or loads a value of a crew: failures of calls, structured outputs in JSON, forms
of earlier releases and the JSON that people see are here too.
"""

from __future__ import annotations

import array
import copyreg
import dataclasses
import datetime
import enum
import importlib
import json
import re
import sys
import zoneinfo
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import TzInfo

from crew_service.crewai.errors import told

ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")  # an object's address, as it appears in its text
PLAIN = (str, int, float, bool, type(None))
CONTAINERS = (dict, tuple, set, frozenset)
BASES = (str, int, float, complex, bytes, bytearray, tuple, list, dict, set, frozenset)
GROWING: dict[type, str] = {list: "extend", dict: "update", set: "update", bytearray: "extend"}
SIMPLE_ARRAYS = "biufcSUmM"  # kinds of numpy's types whose values are just bytes
LONGEST_WHOLE = 10_000  # bits of an integer in decimal
LONGEST_KEPT_TEXT = 80  # characters of a value in an error
LONGEST_ATTRIBUTE = 64 * 1024  # characters of one attribute of an exception
Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str, ...]
Form = tuple[Callable[[Any], Any], Callable[[Any], Any]]
Sets = dict[
    int, tuple[Any, list[Any]]
]  # by the ids of sets: these, with their elements in the order in which they were written


class NotStorable(Exception):
    """Decoding would not return an equal value.

    :param value: the part that would not come back
    :param path: its place in the whole, from the outside
    """

    def __init__(self, value: Any, reason: str = "", path: Path = ()) -> None:
        super().__init__(reason)
        self.value, self.reason, self.path = value, reason, path

    @property
    def place(self) -> str:
        """Return the part's place, such as `reports[2].author`; an empty string for the whole value."""
        return "".join(self.path).removeprefix(".")

    @property
    def kind(self) -> str:
        return _name(type(self.value))

    @property
    def kept(self) -> str:
        """Return the text that would remain of the part."""
        try:
            return told(ADDRESS.sub("", str(self.value)), LONGEST_KEPT_TEXT)
        except Exception:  # raised by a user's class
            return ""

    def within(self, place: str) -> NotStorable:
        """Return the same problem of the value that has this one at a place."""
        return NotStorable(self.value, self.reason, (place, *self.path))

    def __str__(self) -> str:
        return f"{self.place or 'the value'} ({self.kind}) {self.reason or 'cannot be stored'}"


class NotMade(Exception):
    """A stored value contains itself in a way in which it cannot be built."""


@dataclasses.dataclass(frozen=True)
class Among:
    """Where the classes of a value may be found.

    :param expected: a class that need not have a path
    :param packages: the top-level names that the reading process has loaded; None for those of this process
    """

    expected: type | None = None
    packages: Container[str] | None = None
    is_whole: bool = True


def encoded(
    value: Any, expected: type | None = None, *, packages: Container[str] | None = None, is_whole: bool = True
) -> str:
    """Encode a value as text.

    :param expected: a class that `decoded` is given too; it need not have a path
    :param packages: the top-level modules that the reading process will have loaded; the default are this process's
    :param is_whole: whether decoding must return an equal value; if not, fields that its models exclude may be lost
    :raises NotStorable: if decoding would not return such a value
    """
    among, is_deep = Among(expected, packages, is_whole), False
    unpacking = Unpacking(expected)
    try:
        text = json.dumps(Packing(among).whole(value))
        same = unpacking.value(json.loads(text))
        again = Packing(among, unpacking.sets) if is_whole else None
        if type(same) is type(value) and (again is None or json.dumps(again.whole(same)) == text):
            return text
        problem = NotStorable(value, "would not come back the same")
    except NotStorable as error:
        problem = error
    except RecursionError:
        problem, is_deep = NotStorable(value, "is nested too deeply"), True
    except NotMade:
        problem = NotStorable(value, "contains itself")
    except Exception as error:  # raised by a user's class
        problem = NotStorable(value, f"cannot be restored: {type(error).__name__}")
    if not problem.path:
        for name, part in _fields_of(value).items():
            try:
                if is_deep:
                    Packing(among).whole(part)
                else:
                    encoded(part, packages=packages, is_whole=is_whole)
            except RecursionError:
                raise NotStorable(part, problem.reason, (f".{name}",)) from None
            except NotStorable as error:
                raise error.within(f".{name}") from None
    raise problem from None


def decoded(text: str, expected: type | None = None) -> Any:
    """Return the value.

    :raises Exception: of any kind, if its class has changed or is gone
    """
    return Unpacking(expected).value(json.loads(text))


def loaded_packages() -> frozenset[str]:
    """List the top-level modules of this process, for `encoded`: a process that starts later has these too."""
    return frozenset(name.partition(".")[0] for name in list(sys.modules))


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return {name: each for name, each in vars(value).items() if name in type(value).model_fields}
    return value if isinstance(value, dict) and all(type(name) is str for name in value) else {}


# --- packing ---


class Packing:
    """One value on its way to JSON: an object that it meets again is written as the same one.

    :param sets: those that an `Unpacking` has made of it, if it was written before
    """

    def __init__(self, among: Among, sets: Sets | None = None) -> None:
        self._among, self._sets = among, sets or {}
        self._met: dict[int, Any] = {}  # what can change, by id; kept, because another object could get the id
        self._packed: dict[int, Any] = {}  # likewise, in JSON
        self._numbers: dict[int, int] = {}  # of what was met again
        self._references = 0

    def whole(self, value: Any) -> Any:
        """Return the JSON of a value, in which those of its objects that occur again have a number."""
        packed = [self.packed(value)]
        numbers = {id(self._packed[key]): number for key, number in self._numbers.items()}
        left: list[Any] = [packed] if numbers else []
        while left:
            node = left.pop()
            for key, each in list(node.items() if isinstance(node, dict) else enumerate(node)):
                if isinstance(each, dict | list):
                    left.append(each)
                    node[key] = {"shared": numbers[id(each)], "value": each} if id(each) in numbers else each
        return packed[0]

    def packed(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN and _is_plain(value):
            return value
        if id(value) in self._met:
            self._references += 1
            return {"same": self._numbers.setdefault(id(value), len(self._numbers) + 1)}
        if kind is list:
            self._meet(value)
            packed: Any = self._listed(value)
        elif kind is dict:
            self._meet(value)
            packed = self._mapping(value)
        else:
            packed = self._of_class(value, kind)
        if id(value) in self._met:
            self._packed[id(value)] = packed
        return packed

    def _of_class(self, value: Any, kind: Any) -> Any:
        if isinstance(value, type):
            return {"type": _path(value, value, self._among)}
        path = None if kind is self._among.expected else _path(kind, value, self._among)
        if kind is tuple:
            return {"class": path, "items": self._listed(value)}
        if kind in CONTAINERS:
            if kind is set:
                self._meet(value)
            return {"class": path, "items": self._unordered(value, value)}
        if isinstance(value, BaseModel):
            self._meet(value)
            return {"class": path, **self._model(value)}
        for attempt in (_packed_scalar, self._form, _packed_member, self._subclass, self._object):
            if (packed := attempt(value)) is not None:
                return {"class": path, **packed}
        raise NotStorable(value)

    def _meet(self, value: Any) -> None:
        self._met[id(value)] = value

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Forget what was met within this block if it is not stored."""
        met, numbers = len(self._met), len(self._numbers)
        try:
            yield
        except NotStorable:
            for key in list(self._met)[met:]:
                del self._met[key]
                self._packed.pop(key, None)
            for key in list(self._numbers)[numbers:]:
                del self._numbers[key]
            raise

    def _listed(self, values: Iterable[Any]) -> list[Any]:
        packed = []
        for place, each in enumerate(values):
            try:
                packed.append(self.packed(each))
            except NotStorable as error:
                raise error.within(f"[{place}]") from None
        return packed

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        packed = {}
        for name, each in values.items():
            try:
                packed[name] = self.packed(each)
            except NotStorable as error:
                raise error.within(f".{name}") from None
        return packed

    def _mapping(self, values: dict[Any, Any]) -> dict[str, Any]:
        if all(type(name) is str and _is_plain(name) for name in values):
            return {"dict": self._named(values)}
        items = []
        for name, each in values.items():
            try:
                items.append([self.packed(name), self.packed(each)])
            except NotStorable as error:
                raise error.within(f"[{name!r}]") from None
        return {"class": _path(dict, values, self._among), "items": items}

    def _unordered(self, made: Any, elements: Collection[Any]) -> list[Any]:
        """Pack a set, which has no order of its own, unless its elements have parts that may occur again."""
        _, written = self._sets.get(id(made), (made, elements))
        known = len(self._met), self._references
        packed = [self.packed(each) for each in (written if len(written) == len(elements) else elements)]
        return sorted(packed, key=json.dumps) if known == (len(self._met), self._references) else packed

    def _model(self, value: BaseModel) -> dict[str, Any]:
        if not self._among.is_whole:
            return {"fields": value.model_dump(mode="json"), "by_name": True}
        try:
            with self._trying():
                return {"state": {"dict": self._state(value)}}
        except NotStorable:
            with suppress(Exception):  # raised by a user's class
                fields = value.model_dump(mode="json")  # a field's serializer and validator may belong together
                same = type(value).model_validate(fields, by_name=True)
                if type(same) is type(value) and same == value:
                    return {"fields": fields, "by_name": True}
            raise

    def _state(self, value: BaseModel) -> dict[str, Any]:
        state = BaseModel.__getstate__(value)
        values, known = state["__dict__"], type(value).model_fields
        packed: dict[str, Any] = {
            "__dict__": self._mapping({name: values[name] for name in known if name in values}),
            "__pydantic_fields_set__": {"class": "builtins:set", "items": sorted(state["__pydantic_fields_set__"])},
        }
        for name in ("__pydantic_extra__", "__pydantic_private__"):
            packed[name] = None if state[name] is None else self._mapping(state[name])
        if attributes := self._beside(type(value), {name: each for name, each in values.items() if name not in known}):
            packed["attributes"] = {"dict": attributes}
        return packed

    def _beside(self, kind: type, values: dict[str, Any]) -> dict[str, Any]:
        """Pack what a model has beside its fields; a cached property that cannot be stored is computed again."""
        packed = {}
        for name, each in values.items():
            try:
                with self._trying():
                    packed[name] = self.packed(each)
            except NotStorable as error:
                if not isinstance(getattr(kind, name, None), cached_property):
                    raise error.within(f".{name}") from None
        return packed

    def _form(self, value: Any) -> dict[str, Any] | None:
        kind: Any = type(value)
        form = FORMS.get(kind) or _array_form(kind)
        if form is None:
            return None
        if hasattr(kind, "__setitem__") or kind is SimpleNamespace:
            self._meet(value)
        try:
            return {"form": self.packed(form[0](value))}
        except ValueError:  # it has no such form
            return None

    def _subclass(self, value: Any) -> dict[str, Any] | None:
        kind = type(value)
        base = _base_of(kind)
        if base is None or not _is_copied_by_default(kind):
            return None
        if base in GROWING or getattr(value, "__dict__", None):
            self._meet(value)
        if base in (set, frozenset):
            items = self._unordered(value, list(base.__iter__(value)))
            packed = {"base": {"class": _path(base, value, self._among), "items": items}}
        else:
            packed = {"base": self.packed(_as(base, value))}
        return {**packed, "attributes": self._attributes(value)} if getattr(value, "__dict__", None) else packed

    def _object(self, value: Any) -> dict[str, Any] | None:
        """Pack an object whose class leaves to Python how it is copied: all that it consists of are its attributes."""
        if not _is_copied_by_default(type(value)):
            return None
        try:
            made, arguments, _, *items = (*object.__reduce_ex__(value, 2), None, None)[:5]
        except Exception:  # such as a lock, a socket or a function
            return None
        if made is not copyreg.__newobj__ or arguments != (type(value),) or any(each is not None for each in items):  # type: ignore[attr-defined]
            return None
        self._meet(value)
        return {"attributes": self._attributes(value)}

    def _attributes(self, value: Any) -> dict[str, Any]:
        slots = {name: getattr(value, name) for name in _slots(type(value), value)}
        return self._named({**getattr(value, "__dict__", {}), **slots})


def _is_plain(value: Any) -> bool:
    """Return whether JSON keeps a plain value: half a surrogate pair may find its other half, and be one character."""
    if type(value) is int:
        return value.bit_length() <= LONGEST_WHOLE
    if type(value) is not str or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _packed_scalar(value: Any) -> dict[str, Any] | None:
    """Leave a class to pydantic if its values are a string or number in JSON, and come back."""
    kind: Any = type(value)
    if kind in FORMS and kind not in (bytes, datetime.datetime, datetime.time):
        return None
    if (adapter := _adapter(kind)) is None:
        return None
    try:
        dumped = adapter.dump_python(value, mode="json")
        same = adapter.validate_python(dumped) if type(dumped) in PLAIN else None
        is_same = type(same) is kind and (same is value or repr(same) == repr(value))
        return {"value": dumped} if is_same else None
    except Exception:  # raised by a user's class
        return None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(kind)
    except Exception:  # pydantic does not know the class
        return None


def _packed_member(value: Any) -> dict[str, Any] | None:
    is_member = isinstance(value, enum.Enum) and type(value).__members__.get(value.name) is value
    return {"member": value.name} if is_member else None


def _base_of(kind: type) -> Any:
    """Return the built-in type that a class derives from; None if there is none."""
    return next((each for each in BASES if each in kind.__mro__), None)


def _as(base: Any, value: Any) -> Any:
    """Return a value of a subclass as one of the built-in type, without the subclass's methods."""
    if base in (str, bytes, bytearray, tuple, list, dict):
        parts: Any = dict.items(value) if base is dict else base.__iter__(value)
        return "".join(parts) if base is str else base(list(parts))
    return getattr(base, {int: "__int__", float: "__float__", complex: "__pos__"}[base])(value)


def _is_copied_by_default(kind: type) -> bool:
    own = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", "__del__")
    states = () if dataclasses.is_dataclass(kind) else ("__getstate__", "__setstate__")
    return all(
        getattr(kind, name, None) is getattr(object, name, None) or _is_of_builtin(kind, name)
        for name in (*own, *states)
    )


def _is_of_builtin(kind: type, name: str) -> bool:
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    return owner in (*BASES, object) or (name == "__getnewargs__" and hasattr(kind, "_fields"))


def _slots(kind: type, value: Any) -> list[str]:
    declared: list[str] = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        private = f"_{each.__name__.lstrip('_')}"
        declared += [
            f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names
        ]
    return [name for name in declared if name not in ("__dict__", "__weakref__") and hasattr(value, name)]


# --- unpacking ---


class Unpacking:
    """One value on its way from JSON."""

    def __init__(self, expected: type | None = None) -> None:
        self._expected = expected
        self._shared: dict[int, Any] = {}  # by number
        self.sets: Sets = {}

    def value(self, packed: Any, number: int | None = None) -> Any:
        """Return the value of decoded JSON.

        :param number: of the object, if it occurs again
        """
        if isinstance(packed, list):
            values: list[Any] = self._begun([], number)
            for each in packed:
                values.append(self.value(each))
            return values
        if not isinstance(packed, dict):
            return packed
        if "shared" in packed:
            return self.value(packed["value"], packed["shared"])
        if "same" in packed:
            if packed["same"] not in self._shared:
                raise NotMade
            return self._shared[packed["same"]]
        if "dict" in packed:
            named: dict[str, Any] = self._begun({}, number)
            for name, each in packed["dict"].items():
                named[name] = self.value(each)
            return named
        if "type" in packed:
            return resolved(packed["type"])
        kind: Any = resolved(packed["class"]) if packed["class"] else self._expected
        if "items" in packed and kind in CONTAINERS:
            return self._container(kind, packed["items"], number)
        if "form" in packed:
            form = FORMS.get(kind) or _array_form(kind)
            if form is None:
                raise TypeError("no form for this class")
            content = self.value(packed["form"])
            return self._begun(form[1](content if kind in FORMS else (kind, content)), number)
        if "value" in packed:
            adapter = _adapter(kind)
            if adapter is None:
                raise TypeError("its class has changed")
            return adapter.validate_python(packed["value"])
        if "member" in packed and issubclass(kind, enum.Enum):
            return kind.__members__[packed["member"]]
        if issubclass(kind, BaseModel):
            if "state" in packed:
                model = self._begun(object.__new__(kind), number)
                _fill(model, self.value(packed["state"]))
                return model
            return self._begun(kind.model_validate(packed["fields"], by_name=packed.get("by_name")), number)
        if not _is_copied_by_default(kind):
            raise TypeError("its class has changed")
        made = self._based(kind, packed["base"], number) if "base" in packed else object.__new__(kind)
        self._begun(made, number)
        for name, each in packed.get("attributes", {}).items():
            object.__setattr__(made, name, self.value(each))
        return made

    def _begun(self, made: Any, number: int | None) -> Any:
        """Let the parts of an object refer to it."""
        if number is not None:
            self._shared[number] = made
        return made

    def _container(self, kind: Any, items: list[Any], number: int | None) -> Any:
        if kind is dict:
            mapping: dict[Any, Any] = self._begun({}, number)
            for name, each in items:
                key = self.value(name)  # first, as it was written: its parts may occur again in the value
                mapping[key] = self.value(each)
            return mapping
        made = self._begun(set(), number) if kind is set else None
        elements = [self.value(each) for each in items]
        if kind is tuple:
            return tuple(elements)
        if made is None:
            made = frozenset(elements)
        else:
            made.update(elements)
        self.sets[id(made)] = made, elements
        return made

    def _based(self, kind: Any, packed: Any, number: int | None) -> Any:
        base = _base_of(kind)
        if base is None:
            raise TypeError("its class has changed")
        made = self._begun(base.__new__(kind), number) if base in GROWING else None
        value = self.value(packed)
        if type(value) is not base:
            raise TypeError("its class has changed")
        if made is None:
            made = base.__new__(kind, value)
        else:
            getattr(base, GROWING[base])(made, value)
        if base in (set, frozenset):
            self.sets[id(made)] = made, self.sets[id(value)][1]
        return made


def with_state(kind: type[Model], state: dict[str, Any]) -> Model:
    """Return a model with this state, as `pickle` and `copy` make it: no validator runs.

    :raises ValueError: if its class now has a required field that the state lacks
    """
    made = object.__new__(kind)
    _fill(made, state)
    return made


def _fill(made: BaseModel, state: dict[str, Any]) -> None:
    kind = type(made)
    known, fields = kind.model_fields, state["__dict__"]
    values = {name: fields[name] for name in known if name in fields}
    for name in known.keys() - values.keys():
        if known[name].is_required():
            raise ValueError(f"its class {_name(kind)} now requires the field {name!r}")
        values[name] = known[name].get_default(call_default_factory=True, validated_data=values)
    fields_set = set(state["__pydantic_fields_set__"]) & {*known, *(state["__pydantic_extra__"] or ())}
    values.update(state.get("attributes", {}))
    BaseModel.__setstate__(made, {**state, "__dict__": values, "__pydantic_fields_set__": fields_set})


def _path(kind: type, value: Any, among: Among) -> str:
    package = kind.__module__.partition(".")[0]
    if among.packages is not None and package not in among.packages:
        raise NotStorable(value, f"is of the module {package!r}, which is not imported when the crew is loaded")
    if (path := path_of(kind)) is None:
        raise NotStorable(value, "is of a class that is not at the top level of a module")
    return path


def path_of(kind: type) -> str | None:
    """Return the path that leads to a class; None if there is none."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    with suppress(Exception):
        return path if resolved(path) is kind else None
    return None


def resolved(path: str) -> type:
    """Return the class at a path, in a loaded module or in a part of a loaded package.

    :raises LookupError: if there is nothing at that path
    :raises TypeError: if it is not a class
    """
    module, _, name = path.partition(":")
    if module not in sys.modules:
        if module.partition(".")[0] not in sys.modules:
            raise LookupError(f"the module {module} is not loaded")
        importlib.import_module(module)
    named: Any = sys.modules[module]
    for part in name.split("."):
        named = vars(named)[part]
    if not isinstance(named, type):
        raise TypeError(f"{path} is not a class")
    return named


# --- failures ---


@dataclasses.dataclass(frozen=True)
class Raised:
    """The answer of a call that raised an exception."""

    error: Exception


def failure(error: Exception) -> str:
    """Encode an exception with its importable classes, and what pickle would keep of it."""
    kind = type(error)
    _, args, *more = _builtin(kind).__reduce__(error)
    texts = {}
    for name, value in (("args", [*args]), *(more[0] or {} if more else {}).items()):
        with suppress(NotStorable):
            if len(text := encoded(value)) <= LONGEST_ATTRIBUTE:
                texts[name] = text
    classes = [each for each in map(_importable, kind.__mro__) if each]
    return json.dumps({"raised": [kind.__name__, text_of(error)], "classes": classes, "kept": texts})


def text_of(error: BaseException) -> str:
    """Return an exception's text, or a substitute if its own class fails to produce one."""
    try:
        return str(error)
    except Exception:  # raised by a user's class
        return "its text cannot be read"


def answer(text: str, expected: type[BaseModel] | None = None) -> Any:
    """Return the answer of a call; a failure is `Raised`."""
    packed = json.loads(text)
    if isinstance(packed, dict) and "raised" in packed:
        name, details = packed["raised"]
        return Raised(_error(name, details, packed.get("classes", [f"builtins:{name}"]), packed.get("kept", {})))
    return Unpacking(expected).value(packed)


def _error(name: str, text: str, classes: list[str], attributes: dict[str, str]) -> Exception:
    """Return an exception that the crew's code catches like the original: of its class or, if impossible, a subclass.

    It has the same name and text. No code of its class runs, which might need other arguments.
    """
    state: dict[str, Any] = {}
    for each, value in attributes.items():
        with suppress(Exception):  # its class may be gone
            state[each] = answer(value)
    args = state.pop("args", [text])
    for path in (*classes, "builtins:Exception"):
        for is_made_up in (False, True):
            with suppress(Exception):
                known: Any = resolved(path)
                kind = type(name, (known,), {"__str__": lambda _: text}) if is_made_up else known
                return _same(kind, [text] if is_made_up else args, state, name, text)
    return Exception(text)


def _same(kind: type[Exception], args: list[Any], state: dict[str, Any], name: str, text: str) -> Exception:
    builtin = _builtin(kind)
    error: Exception = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    error.__setstate__(state)
    if kind.__name__ != name or str(error) != text:
        raise ValueError("it is not the same exception")
    return error


def _builtin(kind: type[Exception]) -> Any:
    return next(each for each in kind.__mro__ if each.__module__ == "builtins" and issubclass(each, Exception))


def _importable(kind: type) -> str | None:
    with suppress(Exception):
        return path_of(kind) if issubclass(kind, Exception) else None
    return None


# --- JSON for people ---


def shown(value: Any, within: tuple[Any, ...] = ()) -> Any:
    """Return a value as plain JSON for people: models as objects, sets as lists, the rest as strings.

    What is not a number is null, as pydantic writes it; bytes are their text or, where they have none, base64.

    :param within: models of which it is a part
    """
    try:
        text = json.dumps(_with_plain_keys(value), default=partial(_as_json, within))
        return json.loads(text, parse_constant=lambda _: None)
    except Exception:  # raised by a user's class, or it contains itself
        return NotStorable(value).kept


def _with_plain_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(name): _with_plain_keys(each) for name, each in value.items()}
    return [_with_plain_keys(each) for each in value] if isinstance(value, list | tuple) else value


def _key(name: Any) -> Any:
    """Convert a dict's key to one that JSON allows, as CrewAI does when it stores a state."""
    if isinstance(name, enum.Enum):
        return _key(name.value)
    return name if isinstance(name, str | int | float | None) else _as_text(name)


def _as_text(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return b64encode(value).decode()
    return ADDRESS.sub("", str(value))


def _as_json(within: tuple[Any, ...], value: Any) -> Any:
    if any(value is each for each in within):
        return "..."
    if isinstance(value, BaseModel):
        try:
            return value.model_dump(mode="json", fallback=str)
        except Exception:  # such as bytes that are not UTF-8, or it contains itself
            return {name: shown(each, (*within, value)) for name, each in _fields_of(value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_plain_keys(dataclasses.asdict(value))
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, enum.Enum):
        return value.value
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else _as_text(value)


def is_in_json(value: Any, data: Any) -> bool:
    """Return whether a structured output is the same when it is read from its JSON."""
    kind: Any = type(value)
    with suppress(Exception):  # raised by a user's model
        same = kind.model_validate(data) if issubclass(kind, BaseModel) else data
        return encoded(same, kind) == encoded(value, kind)
    return False


def of_json(model: type[BaseModel], *candidates: Any) -> BaseModel:
    """Return a structured output from its JSON, in the first form that its model accepts or, if none, unchecked."""
    for data in candidates:
        with suppress(Exception):  # raised by a user's model
            return model.model_validate(data)
    data = candidates[0]
    fields = data if isinstance(data, dict) and not issubclass(model, RootModel) else {"root": data}
    known = {name: fields.get(name) for name in model.model_fields}
    empty = {"__pydantic_extra__": None, "__pydantic_private__": None}
    return with_state(model, {"__dict__": known, "__pydantic_fields_set__": set(known), **empty})


def decoded_of_0_2(record: dict[str, Any]) -> Any:
    """Return the result of a Flow's method, as release 0.2.0 stored it."""
    if "model" not in record:
        return record["value"]
    kind: Any = resolved(":".join(record["model"]))
    return kind.model_validate(record["data"])


# --- classes with a form of their own ---


def _tz_form(value: datetime.timezone) -> Any:
    shift, name = value.utcoffset(None), value.tzname(None)
    is_default = datetime.timezone(shift).tzname(None) == name
    return [shift.days, shift.seconds, shift.microseconds, None if is_default else name]


def _tz_of(form: Any) -> datetime.timezone:
    days, seconds, microseconds, name = form
    shift = datetime.timedelta(days, seconds, microseconds)
    return datetime.timezone(shift) if name is None else datetime.timezone(shift, name)


def _moment(kind: Any) -> Form:
    return (
        lambda value: [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, value.tzinfo],
        lambda form: kind.fromisoformat(form[0]).replace(fold=form[1], tzinfo=form[2]),
    )


def _zone_key(value: zoneinfo.ZoneInfo) -> str:
    if value.key is None:
        raise ValueError("it was read from a file")
    return value.key


def _bytes_form(value: Any) -> str:
    return b64encode(value).decode()


FORMS: dict[type, Form] = {
    str: (
        lambda value: _bytes_form(value.encode("utf-32", "surrogatepass")),
        lambda form: b64decode(form).decode("utf-32", "surrogatepass"),
    ),
    int: (hex, lambda form: int(form, 16)),
    Decimal: (str, Decimal),
    Fraction: (str, Fraction),
    complex: (lambda value: [value.real, value.imag], lambda form: complex(*form)),
    bytes: (_bytes_form, b64decode),
    bytearray: (_bytes_form, lambda form: bytearray(b64decode(form))),
    array.array: (
        lambda value: [value.typecode, _bytes_form(value.tobytes())],
        lambda form: array.array(form[0], b64decode(form[1])),
    ),
    datetime.datetime: _moment(datetime.datetime),
    datetime.time: _moment(datetime.time),
    datetime.timezone: (_tz_form, _tz_of),
    zoneinfo.ZoneInfo: (_zone_key, zoneinfo.ZoneInfo),
    TzInfo: (lambda value: int(value.utcoffset(None).total_seconds()), TzInfo),
    SecretStr: (lambda value: value.get_secret_value(), SecretStr),
    SecretBytes: (lambda value: value.get_secret_value(), SecretBytes),
    deque: (lambda value: [list(value), value.maxlen], lambda form: deque(*form)),
    OrderedDict: (lambda value: list(map(list, value.items())), OrderedDict),
    Counter: (lambda value: list(map(list, value.items())), lambda form: Counter(dict(form))),
    defaultdict: (
        lambda value: [value.default_factory, dict(value)],
        lambda form: defaultdict(*form),
    ),
    SimpleNamespace: (lambda value: dict(vars(value)), lambda form: SimpleNamespace(**form)),
}


def _array_form(kind: type) -> Form | None:
    """Return the form of numpy's arrays and numbers, if they are used here."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        return None

    def dump(value: Any) -> Any:
        if value.dtype.kind not in SIMPLE_ARRAYS:
            raise ValueError("it contains objects")
        return [value.dtype.str, list(value.shape), _bytes_form(value.tobytes())]

    def load(values: Any) -> Any:
        kind, (dtype, shape, data) = values
        made = numpy.frombuffer(bytearray(b64decode(data)), dtype=numpy.dtype(dtype)).reshape(shape)
        return made if kind is numpy.ndarray else made[()]

    return dump, load
