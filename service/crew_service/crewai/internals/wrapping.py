"""Wraps methods of CrewAI's classes and of subclasses that are defined later, coroutine functions among them.

Our own subclasses of CrewAI's abstract classes are `concrete`.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

WRAPPER = "_crew_service_wrapper"
Kind = TypeVar("Kind", bound=type)
Value = TypeVar("Value")


@dataclass
class Made:
    """A call of a method: what it returns, in a list; one that has an answer already is not made."""

    answer: list[Any] = field(default_factory=list)


@contextmanager
def holding(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Let a variable have a value, in a block or, as a decorator, in each call of a function."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def within(
    around: Callable[..., AbstractContextManager[Made | None]], *, is_async: bool | None = None
) -> Callable[[Any], Callable[..., Any]]:
    """Let a method run within `around`, which is given the same arguments and may yield a `Made` to see or answer it.

    :param is_async: whether to await it; by default, if it is a coroutine function
    """

    def wrapped(run: Any) -> Callable[..., Any]:
        def executed(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            with around(owner, *args, **kwargs) as made:
                call = made or Made()
                call.answer = call.answer or [run.__get__(owner)(*args, **kwargs)]
            return call.answer[0]

        async def aexecuted(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            with around(owner, *args, **kwargs) as made:
                call = made or Made()
                call.answer = call.answer or [await run.__get__(owner)(*args, **kwargs)]
            return call.answer[0]

        return aexecuted if (inspect.iscoroutinefunction(run) if is_async is None else is_async) else executed

    return wrapped


def wrap_class(kind: Any, methods: Mapping[str, Callable[[Any], Any]], base: Any) -> None:
    """Wrap the methods of a class and its subclasses."""
    for name, wrapped in methods.items():
        owner = next((each for each in kind.__mro__ if name in vars(each)), None)
        if owner and (owner is kind or not issubclass(owner, base)):  # its own method, or a mixin's
            method = vars(owner)[name]
            if getattr(method, WRAPPER, None) is method:
                continue
            wrapper = wraps(method)(wrapped(method))
            setattr(wrapper, WRAPPER, wrapper)  # refers to itself, because other wrappers copy function attributes
            setattr(kind, name, wrapper)
    for other in kind.__subclasses__():
        wrap_class(other, methods, base)


def wrap_classes_to_come(base: Any, methods: Mapping[str, Callable[[Any], Any]]) -> None:
    declare = vars(base).get("__init_subclass__")

    def declared(kind: Any, /, **options: Any) -> None:
        if declare:
            declare.__func__(kind, **options)
        else:  # early versions of CrewAI do not define it
            super(base, kind).__init_subclass__(**options)
        wrap_class(kind, methods, base)

    base.__init_subclass__ = classmethod(declared)


def concrete(kind: Kind) -> Kind:
    """Add the abstract methods that a subclass does not define, such as those of later releases; they do nothing."""
    for name in getattr(kind, "__abstractmethods__", ()):
        is_async = inspect.iscoroutinefunction(getattr(kind, name))
        setattr(kind, name, _do_nothing_async if is_async else do_nothing)
    abc.update_abstractmethods(kind)
    return kind


def do_nothing(*_: Any, **__: Any) -> None:
    pass


async def _do_nothing_async(*_: Any, **__: Any) -> None:
    pass
