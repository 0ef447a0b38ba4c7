"""What crosses from one process of a crew to another comes back the same, or is refused by name."""

from __future__ import annotations

import array
import ast
import dataclasses
import enum
import json
import math
import re
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy
import pytest
from crewai import CrewOutput, TaskOutput
from crewai.flow.human_feedback import HumanFeedbackResult
from crewai.lite_agent_output import LiteAgentOutput
from pydantic import (
    AliasChoices,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    field_serializer,
    field_validator,
)
from pydantic.alias_generators import to_camel

from crew_service.crewai import codec

pytestmark = pytest.mark.row("S45")


class Report(BaseModel):
    title: str = "t"
    pages: list[int] = Field(default_factory=list)


class Longer(Report):
    author: str = "a"


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    draft_text: str = ""
    other: str = Field(default="", validation_alias=AliasChoices("first", "second"), serialization_alias="third")


class Converting(BaseModel):
    size: int = 0

    @field_validator("size")
    @classmethod
    def _doubled(cls, value: int) -> int:
        return 2 * value

    @field_serializer("size")
    def _told(self, value: int) -> str:
        return f"{value} pages"


class Hidden(BaseModel):
    model_config = ConfigDict(extra="allow")
    shown: int = 1
    left_out: str = Field(default="", exclude=True)
    key: SecretStr = SecretStr("k")
    _own: dict[str, int] = PrivateAttr(default_factory=dict)


class Loose(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thing: Any = None
    report: Report | None = None


class Names(RootModel[list[str]]):
    pass


class Handle:
    """Something that is not made of its attributes."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return Handle, (self.number,)


class Wrapping(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    handle: Handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wrapping) and other.handle.number == self.handle.number

    @field_serializer("handle")
    def _told(self, value: Handle) -> int:
        return value.number

    @field_validator("handle", mode="before")
    @classmethod
    def _made(cls, value: Any) -> Any:
        return Handle(value) if isinstance(value, int) else value


class Colour(enum.Enum):
    RED = (255, 0, 0)
    BLUE = "blue"


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Topic(str):
    __slots__ = ("language",)


class Basket(dict[str, int]):
    pass


Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Entry:
    name: str
    when: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    name: str
    inner: tuple[int, ...] = ()


class Cart:
    def __init__(self) -> None:
        self.items = [Entry("tea")]


class Slotted:
    __slots__ = ("__own", "name")

    def __init__(self) -> None:
        self.name, self.__own = "n", 3

    def own(self) -> int:
        return self.__own


class Wrongly:
    """Says that it equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def hidden() -> Hidden:
    made = Hidden(left_out="kept", more=[1], key=SecretStr("secret"))
    made._own["n"] = 2
    return made


def crew_output() -> CrewOutput:
    task = TaskOutput(description="d", raw="{}", agent="a", pydantic=Longer(title="of a task", author="b"))
    return CrewOutput(raw="{}", pydantic=Report(title="one", pages=[1]), tasks_output=[task])


EQUAL: dict[str, Any] = {
    "text": "plain",
    "text with half a surrogate pair": "\ud83d",
    "text with two halves": "\ud83d\ude00",
    "a key with half a pair": {"\ud83d": 1},
    "a whole number of many digits": 7**9000,
    "numbers that JSON lacks": [math.inf, -math.inf, math.nan, -0.0, 1e300],
    "true beside one": [True, 1, 1.0],
    "a complex number": 1 + 2j,
    "a tuple within a list": [(1, (2,)), []],
    "sets": [{1, "a"}, frozenset({None})],
    "a dict with other keys": {1: "a", (1, 2): Report(), None: date(2026, 1, 2)},
    "bytes that are UTF-8": b"abc",
    "bytes that are not": b"\xff\x00",
    "a bytearray": bytearray(b"\xfe"),
    "dates": [date(2026, 2, 28), time(1, 2, 3, 4), datetime(2026, 1, 1, 12), timedelta(days=-1, microseconds=1)],
    "times with zones": [
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3), "ART")),
        time(4, tzinfo=UTC),
    ],
    "exact numbers": [Decimal("1.10"), Decimal("NaN"), Fraction(1, 3)],
    "names of things": [UUID(int=3), Path("a/b"), AnyUrl("http://a.b/c"), ip_address("::1"), re.compile("a+")],
    "secrets": [SecretStr("s"), SecretBytes(b"\xff")],
    "enum members": [Colour.RED, Colour.BLUE, Rights.READ | Rights.WRITE],
    "collections": [deque([Report()], 5), OrderedDict(b=1, a=2), Counter("aab"), defaultdict(list, a=[(1,)])],
    "a subclass of a built-in type": [Topic("t"), Basket(a=1), Point(1, Report())],
    "an array": [
        array.array("d", [1.5]),
        numpy.arange(6.0).reshape(2, 3),
        numpy.float32(1.5),
        numpy.array(["a", "bc"]),
    ],
    "a namespace": SimpleNamespace(a=(1,)),
    "a dataclass": [Entry("a", datetime(2026, 1, 1)), Fixed("b", (1,))],
    "an object": [Cart(), Slotted()],
    "a class": [Report, int],
    "a model": Report(title="a", pages=[1]),
    "a list of models": [Report(), Longer(author="x")],
    "a model of one value": Names(["a"]),
    "a model in place of its base": Loose(report=Longer(author="b")),
    "a model with aliases": Camel(draftText="on coffee", second="b"),
    "a model that converts": Converting.model_construct(size=3),
    "a model that bypassed its validators": Report.model_construct(title=3),
    "a model with private, excluded and further fields": hidden(),
    "a serializer and a validator that belong together": Wrapping(handle=Handle(3)),
    "anything in a field of type Any": Loose(thing=[Cart(), b"\xff", {1}, Longer()]),
    "a crew's output": crew_output(),
    "an agent's output": LiteAgentOutput(raw="r", pydantic=Report(), agent_role="a"),
    "a person's answer": HumanFeedbackResult(
        output=Report(), feedback="f", outcome="o", timestamp=datetime(2026, 1, 1)
    ),
}


def same(first: Any, second: Any) -> bool:
    """Compare two values by what they consist of, never by their own `==`."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple | deque):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return same([*first.items()], [*second.items()])
    if isinstance(first, numpy.ndarray):
        return first.dtype == second.dtype and first.shape == second.shape and bool((first == second).all())
    if isinstance(first, BaseModel):
        names = ("__dict__", "__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__")
        return all(same(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, set | frozenset):
        return sorted(map(repr, first)) == sorted(map(repr, second))
    if isinstance(first, int):
        return first == second
    if isinstance(first, float):
        return repr(first) == repr(second)
    if isinstance(first, SecretStr | SecretBytes):
        return bool(first.get_secret_value() == second.get_secret_value())
    if isinstance(first, Handle | Cart | Entry | SimpleNamespace | HumanFeedbackResult):
        return same(vars(first), vars(second))
    if isinstance(first, Slotted):
        return first.own() == second.own() and first.name == second.name
    return repr(first) == repr(second) and getattr(first, "fold", 0) == getattr(second, "fold", 0)


@pytest.mark.parametrize("kind", EQUAL)
def test_a_value_comes_back_the_same(kind: str) -> None:
    text = codec.encoded(EQUAL[kind])
    assert text.isascii()
    assert same(codec.decoded(text), EQUAL[kind])


@pytest.mark.long
def test_values_come_back_in_another_process() -> None:
    kinds = [kind for kind in EQUAL if not isinstance(EQUAL[kind], Handle)]
    program = (
        "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); import test_codec as t\n"
        "texts = json.load(sys.stdin)\n"
        "print([kind for kind in texts if not t.same(t.codec.decoded(texts[kind]), t.EQUAL[kind])])"
    )
    told = json.dumps({kind: codec.encoded(EQUAL[kind]) for kind in kinds})
    command = [sys.executable, "-c", program, json.dumps(sys.path)]
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip().endswith("[]"), done.stderr


def local() -> Any:
    class Local(BaseModel):
        pass

    return Local()


def looped() -> Any:
    found: deque[Any] = deque()
    found.append(found)
    return found


class Shut:
    def __getstate__(self) -> Any:
        raise OSError("shut")


REFUSED: dict[str, tuple[Any, str]] = {
    "a lock": (Loose(thing=threading.Lock()), "thing"),
    "an object deep inside": ({"reports": [Loose(), Loose(thing={"client": Handle(1)})]}, "reports[1].thing.client"),
    "a private client": (Wrapping.model_construct(handle=threading.Lock()), "handle"),
    "a class of a function": (Loose(thing=local()), "thing"),
    "a function": ({"f": local}, "f"),
    "a lambda": ({"f": lambda: None}, "f"),
    "a generator": ({"g": (each for each in ())}, "g"),
    "an open file": ({"f": sys.__stdout__}, "f"),
    "a module": ({"m": sys}, "m"),
    "an exception": ({"e": ValueError("x")}, "e"),
    "an array of objects": ({"a": numpy.array([object()])}, "a"),
    "an object that says how it is stored": ({"s": Shut()}, "s"),
    "a queue that contains itself": ({"queue": looped()}, "queue"),
    "a bare object with a lock": (Loose(thing=SimpleNamespace(lock=threading.RLock())), "thing.lock"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_that_would_change_is_refused_by_its_place(kind: str) -> None:
    value, place = REFUSED[kind]
    with pytest.raises(codec.NotStorable) as refused:
        codec.encoded(value)
    assert refused.value.place.startswith(place)


def test_a_class_that_equals_everything_is_compared_by_its_parts() -> None:
    assert type(codec.decoded(codec.encoded(Wrongly()))) is Wrongly
    with pytest.raises(codec.NotStorable, match="thing"):
        codec.encoded(Loose(thing=type("Made", (Wrongly,), {})()))


def test_a_class_not_imported_with_the_crew_is_refused() -> None:
    with pytest.raises(codec.NotStorable, match=r"thing .*'test_codec', which is not imported"):
        codec.encoded(Loose(thing=Report()), Loose, packages={"builtins"})


@pytest.mark.parametrize(
    "stored",
    [
        {"class": "antigravity:geohash", "attributes": {}},
        {"class": "os:system", "items": ["true"]},
        {"class": "subprocess:Popen", "items": [["true"]]},
        {"class": "subprocess:Popen", "attributes": {}},
        {"class": "subprocess:Popen", "state": {"dict": {}}},
        {"class": "subprocess:Popen", "base": "true"},
        {"class": "subprocess:Popen", "form": "true"},
        {"class": "subprocess:Popen", "member": "wait"},
        {"class": "builtins:eval", "form": "1"},
        {"class": "test_codec:Report.model_validate", "state": {}},
        {"type": "os:system"},
    ],
)
def test_a_stored_value_builds_nothing_but_values(stored: Any) -> None:
    with pytest.raises((LookupError, TypeError)):
        codec.decoded(json.dumps(stored))
    assert "antigravity" not in sys.modules


def test_a_field_that_is_new_gets_its_default() -> None:
    text = codec.encoded(Report(title="a")).replace("test_codec:Report", "test_codec:Longer")
    assert codec.decoded(text) == Longer(title="a", author="a")
    with pytest.raises(ValueError, match="now requires the field 'needed'"):
        codec.decoded(text.replace("test_codec:Longer", "test_codec:Needy"))
    assert codec.decoded(codec.encoded(Longer()).replace("test_codec:Longer", "test_codec:Report")) == Report()


class Needy(Report):
    needed: int


# What release 0.3.0 stored while it was developed, and 0.2.0.
EARLIER = {
    '{"class": "test_codec:Report", "fields": {"title": "a", "pages": [1]}}': Report(title="a", pages=[1]),
    '{"class": "builtins:bytes", "value": "abc"}': b"abc",
    '{"class": "datetime:date", "value": "2026-01-02"}': date(2026, 1, 2),
    '{"class": "builtins:tuple", "items": [1, {"dict": {"a": null}}]}': (1, {"a": None}),
    '{"class": "builtins:dict", "items": [[1, "a"]]}': {1: "a"},
    '{"class": "test_codec:Report", "state": {"dict": {"__dict__": {"dict": {"title": "a", "pages": []}}, '
    '"__pydantic_extra__": null, "__pydantic_fields_set__": {"class": "builtins:set", "items": ["title"]}, '
    '"__pydantic_private__": null}}}': Report(title="a"),
}


@pytest.mark.parametrize("text", EARLIER)
def test_an_answer_that_an_earlier_release_stored_is_read(text: str) -> None:
    assert same(codec.answer(text), EARLIER[text])


DUMPS = frozenset(
    (
        *("model_dump", "model_dump_json", "model_validate", "model_validate_json", "model_construct"),
        *("dump_python", "dump_json", "validate_python", "validate_json", "TypeAdapter"),
        *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "deepcopy"),
        *("pickle", "copyreg", "marshal", "shelve", "dill", "cloudpickle"),
    )
)
# What is not passed to another process, or belongs to a form that is not ours.
ELSEWHERE = {
    "answers.py": {"model_dump"},  # a request as text, which is compared with earlier ones and never read back
    "flow_source.py": {"model_validate"},  # a kickoff's inputs
    "internals/flow_methods.py": {"model_dump", "model_validate"},  # inputs, and states that CrewAI's @persist dumped
    "internals/model_calls.py": {"model_dump"},  # a provider's token counts
    "task_outputs.py": {"model_dump_json", "model_validate"},  # the output file, as CrewAI writes it; edited text
    "tool_arguments.py": {"model_dump", "model_validate"},  # arguments, as their tool reads them
}


def test_only_the_codec_dumps_or_loads_a_crews_values() -> None:
    package, found = Path(codec.__file__).parent, {}
    for path in package.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
        if names & DUMPS:
            found[path.relative_to(package).as_posix()] = names & DUMPS
    assert found.pop("codec.py") >= {"model_dump", "model_validate", "TypeAdapter", "__reduce__"}
    assert found == ELSEWHERE


class Branch(BaseModel):
    name: str = ""
    parent: Any = None
    children: list[Any] = []

    @cached_property
    def path(self) -> list[str]:
        return [self.name]

    @cached_property
    def client(self) -> Any:
        return threading.Lock()


class Other(BaseModel):
    first: Any = None
    second: Any = None


class Crate(list[Any]):
    pass


class Fleet(set[Any]):
    pass


SHARED: dict[str, Any] = {
    "a list": [1],
    "a dict": {"a": 1},
    "a dict with other keys": {1: "a"},
    "a set": {1},
    "bytes": bytearray(b"a"),
    "a model": Report(),
    "a model with private and further fields": hidden(),
    "a dataclass": Entry("a"),
    "a frozen dataclass": Fixed("a"),
    "an object": Cart(),
    "an object with slots": Slotted(),
    "a subclass of dict": Basket(a=1),
    "a subclass of list": Crate([1]),
    "a subclass of set": Fleet([1]),
    "a namespace": SimpleNamespace(a=1),
    "a queue": deque([1], 3),
    "a dict with defaults": defaultdict(list, a=[1]),
    "an ordered dict": OrderedDict(a=1),
    "an array": array.array("d", [1.5]),
    "an array of numpy": numpy.arange(3.0),
}


@pytest.mark.parametrize("kind", SHARED)
def test_what_is_shared_within_a_value_stays_shared(kind: str) -> None:
    thing = SHARED[kind]
    value = Other(first=[thing, (thing, {"c": thing}), frozenset((1,))], second=SimpleNamespace(own=thing))
    text = codec.encoded(value)
    back = codec.decoded(text)
    found = back.first[0]
    assert same(found, thing)
    assert [back.first[1][0] is found, back.first[1][1]["c"] is found, back.second.own is found] == [True] * 3
    assert codec.encoded(back) == text
    assert "shared" not in codec.encoded([thing]), "an earlier release can read it"


def test_a_key_of_a_dict_may_occur_in_its_value() -> None:
    cart = Cart()
    back = codec.decoded(codec.encoded({cart: [cart]}))
    [(key, [value])] = back.items()
    assert key is value


def test_what_cannot_change_is_written_as_by_earlier_releases() -> None:
    assert [kind for kind, value in EQUAL.items() if '"same"' in codec.encoded(value)] == []
    for each in (1, "a" * 99, 1.5, (1, 2), frozenset((1,)), date(2026, 1, 2), Path("a"), Colour.RED, UUID(int=3), b"a"):
        assert codec.encoded([each, each]) == f"[{codec.encoded(each)}, {codec.encoded(each)}]"


def test_what_contains_itself_comes_back_the_same() -> None:
    tree = Branch(name="root")
    tree.children = [Branch(name=name, parent=tree) for name in "ab"]
    root = codec.decoded(codec.encoded(tree))
    assert [each.name for each in root.children] == ["a", "b"]
    assert all(each.parent is root for each in root.children)
    cart: Any = Cart()
    found: list[Any] = []
    mapping: dict[str, Any] = {}
    crate = Crate()
    cart.own, cart.names = cart, {1: cart}
    found.append((found, cart))
    mapping["own"] = mapping
    crate.append(crate)
    found, mapping, crate = codec.decoded(codec.encoded([found, mapping, crate]))
    assert found[0][0] is found
    assert found[0][1].own is found[0][1]
    assert found[0][1].names[1] is found[0][1]
    assert mapping["own"] is mapping
    assert type(crate[0]) is Crate
    assert crate[0] is crate


def test_a_set_keeps_its_objects_that_are_also_elsewhere() -> None:
    """They differ in their identity only, and a set has them in another order in each process."""
    carts: list[Any] = [Cart() for _ in range(20)]
    for each in carts:
        each.all = carts
    value = {"all": set(carts), "fleet": Fleet(carts), "fixed": frozenset(carts), "first": carts[0], "list": carts}
    back = codec.decoded(codec.encoded(value))
    assert back["first"] is back["list"][0]
    assert all(set(map(id, back[name])) == set(map(id, back["list"])) for name in ("all", "fleet", "fixed"))
    assert all(each.all is back["list"] for each in back["all"])


def test_what_is_not_stored_shares_nothing() -> None:
    """The first model is stored by its serializer, and the second one's property is computed again."""
    shared, leaf = [1], Branch(name="leaf")
    wrapping = Wrapping.model_construct(handle=Handle(3))
    object.__setattr__(wrapping, "handle", Handle(3))
    vars(wrapping)["shared"] = shared
    vars(leaf)["client"] = [shared, threading.Lock()]
    back = codec.decoded(codec.encoded([wrapping, leaf, shared, {"shared": shared}]))
    assert (back[0].handle.number, "client" in vars(back[1])) == (3, False)
    assert back[2] is back[3]["shared"]


def graph(random: Random) -> Any:
    """Return objects that refer to each other at random."""
    kinds = (list, dict, Crate, Basket, Other, Cart, Branch, SimpleNamespace)
    made: list[Any] = [random.choice(kinds)() for _ in range(12)]
    for each in made:
        parts = [random.choice([*made, None, "text", (random.choice(made), 3)]) for _ in range(2)]
        if isinstance(each, list):
            each.extend(parts)
        elif isinstance(each, dict):
            each.update(zip("ab", parts, strict=True))
        elif isinstance(each, BaseModel):
            vars(each).update(zip(list(type(each).model_fields), parts, strict=False))
        elif not isinstance(each, SimpleNamespace):  # it must not contain itself
            vars(each).update(first=parts[0], second=parts[1])
    return made[0]


def shape(value: Any) -> list[Any]:
    """Describe a graph: its objects in the order in which they are met, with the places of those they refer to."""
    met: dict[int, int] = {}
    found: list[Any] = []

    def place(each: Any) -> Any:
        if each is None or isinstance(each, str | int):
            return repr(each)
        if isinstance(each, tuple):
            return tuple(map(place, each))
        if id(each) in met:
            return met[id(each)]
        met[id(each)] = number = len(found)
        found.append(None)
        content = each if isinstance(each, dict) else {} if isinstance(each, list) else vars(each)
        parts = {name: place(part) for name, part in sorted(content.items())}
        found[number] = type(each), parts, [*map(place, each)] if isinstance(each, list) else []
        return number

    place(value)
    return found


def test_a_graph_of_objects_comes_back_the_same() -> None:
    for seed in range(300):
        value = graph(Random(seed))
        assert shape(codec.decoded(codec.encoded(value))) == shape(value), seed


def test_a_value_nested_too_deeply_is_refused_by_its_place() -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(codec.NotStorable, match=r"^deep .* is nested too deeply"):
        codec.encoded({"flat": [1], "deep": deep})


@pytest.mark.timeout(60)
def test_a_model_that_contains_itself_is_shown_once() -> None:
    tree = Branch(name="root")
    tree.children = [Branch(name=name, parent=tree) for name in "ab"]
    leaves = [{"name": name, "parent": "...", "children": []} for name in "ab"]
    assert codec.shown({"tree": tree}) == {"tree": {"name": "root", "parent": None, "children": leaves}}


@pytest.mark.row("S45")
def test_a_models_extra_state_is_kept_or_computed_again() -> None:
    leaf = Branch(name="leaf")
    leaf.path.append("more")
    assert leaf.client
    same = codec.decoded(codec.encoded(leaf))
    assert same.path == ["leaf", "more"]
    assert "client" not in vars(same)
    object.__setattr__(leaf, "lock", threading.Lock())
    with pytest.raises(codec.NotStorable):
        codec.encoded(leaf)


@pytest.mark.row("S48")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"tea", "tea"),
        (b"\xff\x00", "/wA="),
        (bytearray(b"tea"), "tea"),
        ({b"key": memoryview(b"tea")}, {"key": "tea"}),
        (float("nan"), None),
        ({"share": float("nan"), "rest": [float("inf"), 0.5]}, {"share": None, "rest": [None, 0.5]}),
        ((each for each in ()), "<generator object <genexpr>>"),
        ([object()], ["<object object>"]),
    ],
)
def test_a_value_is_shown_as_json_without_python_representations(value: Any, expected: Any) -> None:
    assert codec.shown(value) == expected
    json.loads(json.dumps(codec.shown(value), allow_nan=False))
