"""The built-in functions and imports of a restricted program.

Ordinary code runs at full speed: attribute access, calls and arithmetic are not checked. Only functions that take names
as text are replaced (`getattr` and similar, `str.format`), and an import returns a *facade*: a plain module object with
the public names of the real module, so that `random._os` or `statistics.sys` does not exist.

This is not a wall. It gives good error messages early; the jail is the security boundary.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, NoReturn

if TYPE_CHECKING:
    from belljar.inside.guest.restricted.rules import Rules

_PLAIN = """
abs aiter all anext any ascii bin bool bytearray bytes callable chr classmethod complex dict divmod enumerate
filter float format frozenset hash hex id int isinstance issubclass iter len list map max min next object oct ord pow
print property range repr reversed round set slice sorted staticmethod str sum super tuple zip
None True False Ellipsis NotImplemented __debug__ __build_class__
"""
_KEPT_DUNDERS = ("__name__", "__doc__", "__version__")


class InterpreterError(Exception):
    """The policy refuses something. Programs written for smolagents expect this name."""


class ImportRefused(InterpreterError, ImportError):
    """An import is not allowed; like a missing module, `except ImportError` catches it."""


class AttributeRefused(InterpreterError, AttributeError):
    """A name of a module is hidden from the program; `hasattr` returns False for it."""


for _refusal in (InterpreterError, ImportRefused, AttributeRefused):
    _refusal.__module__, _refusal.__name__, _refusal.__qualname__ = "builtins", "InterpreterError", "InterpreterError"


class Builtins:
    """Creates the built-in functions of one program."""

    def __init__(self, rules: Rules, is_private: Callable[[str], bool], missing: frozenset[str], main: Any) -> None:
        self._rules = rules
        self._is_private = is_private
        self._missing = missing
        self._main = main
        self._facades: dict[str, types.ModuleType] = {}

    def build(self) -> dict[str, Any]:
        """Return the dictionary for the program's `__builtins__`."""
        members = vars(builtins)
        found = {name: members[name] for name in _PLAIN.split() if name in members}
        found.update(
            (name, value)
            for name, value in members.items()
            if isinstance(value, type) and issubclass(value, BaseException)
        )
        if "input" not in self._missing:
            found["input"] = input
        found.update((name, self._absent(name)) for name in self._missing)
        found.update(
            __import__=self._import,
            getattr=self._getattr,
            hasattr=self._hasattr,
            setattr=self._setattr,
            delattr=self._delattr,
            vars=self._vars,
            dir=self._dir,
            type=_one_argument_type(),
            exit=_exit,
            quit=_exit,
            InterpreterError=InterpreterError,
        )
        return found

    def _absent(self, name: str) -> Callable[..., Any]:
        return _refuse_with(self._rules.refuse_function(name))

    # ---- names that are computed while the program runs

    def _check(self, owner: Any, name: Any) -> str:
        """Refuse a name that is not allowed; return it as a plain str.

        A subclass of str could otherwise show one name here and another one to the interpreter.
        """
        if not isinstance(name, str):
            raise TypeError("attribute name must be string, not '" + type(name).__name__ + "'")
        plain: str = str.__str__(name)
        problem = self._rules.refuse_attribute(plain)
        if problem is None and self._is_private(plain) and not self._is_of_program(owner):
            problem = f"attribute {plain!r} is not available here: it is private to the object's class"
        if problem is not None:
            raise InterpreterError(problem)
        return plain

    def _is_of_program(self, owner: Any) -> bool:
        """Whether this is an object of a class that the program defines, or such a class."""
        kind = owner if isinstance(owner, type) else type(owner)
        return kind.__module__ == "__main__"

    def _getattr(self, owner: Any, name: str, *default: Any) -> Any:
        return getattr(owner, self._check(owner, name), *default)

    def _hasattr(self, owner: Any, name: str) -> bool:
        try:
            name = self._check(owner, name)
        except InterpreterError:
            return False
        return hasattr(owner, name)

    def _setattr(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, self._check(owner, name), value)

    def _delattr(self, owner: Any, name: str) -> None:
        delattr(owner, self._check(owner, name))

    def _vars(self, *given: Any) -> Any:
        if not given:
            raise InterpreterError("vars() without an object is not available here: name the variables")
        (owner,) = given
        if self._is_of_program(owner) and not isinstance(owner, type):
            return vars(owner)
        return {name: value for name, value in vars(owner).items() if self._may_be_seen(owner, name)}

    def _dir(self, *given: Any) -> list[str]:
        names = dir(given[0]) if given else sorted(sys._getframe(1).f_locals)
        return [name for name in names if not given or self._may_be_seen(given[0], name)]

    def _may_be_seen(self, owner: Any, name: Any) -> bool:
        try:
            self._check(owner, name)
        except (InterpreterError, TypeError):
            return False
        return True

    # ---- imports

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> types.ModuleType:
        """Implement the import statement; without a `from`, it expects the outermost package."""
        if level or type(name) is not str:
            raise ImportRefused("relative imports are not available here")
        wanted = [name] if not fromlist else [f"{name}.{each}" for each in fromlist if each != "*"] or [name]
        if not self._rules.may_import(name) and not all(map(self._rules.may_import, wanted)):
            raise ImportRefused(self._rules.refuse_import(name), name=name)
        if name == "__future__":
            return builtins.__import__(name)
        builtins.__import__(name, None, None, tuple(fromlist or ()), 0)
        if fromlist:
            return self._facade_with(name, [each for each in fromlist if each != "*"])
        outermost = name.partition(".")[0]
        facade = inner = self._facade(outermost, sys.modules[outermost])
        path = outermost
        for part in name.split(".")[1:]:
            path = f"{path}.{part}"
            vars(inner)[part] = inner = self._facade(path, sys.modules[path])
        return facade

    def _facade_with(self, name: str, wanted: list[str]) -> types.ModuleType:
        facade = self._facade(name, sys.modules[name])
        for each in wanted:
            try:
                getattr(facade, each)
            except AttributeRefused as error:
                raise ImportRefused(str(error), name=name) from None
            except AttributeError:
                pass  # the import statement itself reports it
        return facade

    def _facade(self, name: str, real: Any) -> types.ModuleType:
        """Return a module object with only the public names of `real`."""
        known = self._facades.get(name)
        if known is not None:
            return known
        facade = self._facades[name] = types.ModuleType(name, getattr(real, "__doc__", None))
        listed = getattr(real, "__all__", None) if _is_standard(name) else None
        if self._rules.may_import(name):
            for key, value in list(vars(real).items()):
                if self._is_public(key) and not isinstance(value, types.ModuleType) and (not listed or key in listed):
                    vars(facade)[key] = self._tame(value)

        def find(key: str) -> Any:
            """Look up names that were added later, and modules inside the module."""
            try:
                value = getattr(real, key)
            except AttributeError:
                raise AttributeError(f"module {name!r} has no attribute {key!r}") from None
            if isinstance(value, types.ModuleType):
                inner = f"{name}.{key}"
                inner = inner if sys.modules.get(inner) is value else value.__name__
                if self._rules.may_import(inner) or self._rules.leads_to_allowed(inner):
                    vars(facade)[key] = self._facade(inner, value)
                    return vars(facade)[key]
                raise AttributeRefused(
                    f"{name}.{key} is not available here: {inner!r} is not among the allowed imports"
                )
            if self._is_public(key) and self._rules.may_import(name) and not listed:
                return self._tame(value)
            raise AttributeRefused(f"{name}.{key} is not available here: it is not a public name of {name!r}")

        vars(facade)["__getattr__"] = find
        return facade

    @staticmethod
    def _is_public(key: str) -> bool:
        return key[:1] != "_" or key in _KEPT_DUNDERS

    def _tame(self, value: Any) -> Any:
        """Replace functions of the standard library that take names as text, or text as code."""
        if not callable(value):
            return value
        for module, name, replacement in self._replacements():
            if value is getattr(sys.modules.get(module), name, _NOTHING):
                return replacement
        return value

    def _replacements(self) -> list[tuple[str, str, Any]]:
        absent = [("builtins", name, self._absent(name)) for name in self._missing]
        return [
            *absent,
            ("operator", "attrgetter", self._attrgetter),
            ("operator", "methodcaller", self._methodcaller),
            ("functools", "update_wrapper", self._update_wrapper),
            ("functools", "wraps", self._wraps),
            ("string", "Formatter", _refuse_with(_NO_FORMATTER)),
            ("typing", "get_type_hints", _refuse_with(_NO_TYPE_HINTS)),
        ]

    def _attrgetter(self, *names: str) -> Any:
        for name in names:
            for part in name.split("."):
                self._check(None, part)
        return sys.modules["operator"].attrgetter(*names)

    def _methodcaller(self, name: str, *given: Any, **options: Any) -> Any:
        return sys.modules["operator"].methodcaller(self._check(None, name), *given, **options)

    def _update_wrapper(self, wrapper: Any, wrapped: Any, *names: Any, **named: Any) -> Any:
        if names or named:
            raise InterpreterError("functools.update_wrapper and wraps take no lists of attributes here")
        return sys.modules["functools"].update_wrapper(wrapper, wrapped)

    def _wraps(self, wrapped: Any, *names: Any, **named: Any) -> Callable[[Any], Any]:
        return lambda wrapper: self._update_wrapper(wrapper, wrapped, *names, **named)


_NOTHING = object()
_NO_FORMATTER = "string.Formatter is not available here: use str.format or an f-string"
_NO_TYPE_HINTS = "typing.get_type_hints is not available here: read x.__annotations__"


def _refuse_with(message: str) -> Callable[..., Any]:
    def refuse(*given: Any, **named: Any) -> NoReturn:
        raise InterpreterError(message)

    return refuse


def _is_standard(module: str) -> bool:
    top = module.partition(".")[0]
    known = getattr(sys, "stdlib_module_names", None)
    if known is not None:
        return top in known
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    return "site-packages" not in path


def _exit(code: Any = None) -> NoReturn:
    raise SystemExit(code)


def _one_argument_type() -> type:
    """Create a `type` that returns the type of an object but creates no classes.

    Classes created by a call could define names that the source check refuses.
    """

    class Meta(type):
        def __call__(cls, *given: Any, **options: Any) -> Any:
            if len(given) != 1 or options:
                raise InterpreterError("type() takes one object here: write a class statement to define a class")
            found = type(given[0])
            return cls if issubclass(found, type) else found

        def __instancecheck__(cls, owner: Any) -> bool:
            return isinstance(owner, type)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, type)

        def __repr__(cls) -> str:
            return "<class 'type'>"

    def refuse(cls: Any, /, **options: Any) -> NoReturn:
        raise InterpreterError("metaclasses are not available here: use a plain class, or a class decorator")

    members = {
        "__init_subclass__": classmethod(refuse),
        "__class_getitem__": classmethod(types.GenericAlias),
        "__module__": "builtins",
    }
    # Not with a class statement, which would call `__call__` above.
    return type.__new__(Meta, "type", (), members)


def guard_str_format(rules: Rules) -> None:
    """Refuse `"{0.__globals__}".format(f)` also for templates that are computed while the program runs.

    Methods of a built-in type cannot be set, so this changes the dictionary behind the type.
    """
    from _string import formatter_field_name_split, formatter_parser  # type: ignore[import-not-found]

    def check(template: str) -> None:
        for _, field, spec, _ in formatter_parser(template):
            if field:
                for is_attribute, name in formatter_field_name_split(field)[1]:
                    problem = rules.refuse_attribute(name) if is_attribute and name != "__class__" else None
                    if problem is not None:
                        raise InterpreterError(problem)
            if spec and "_" in spec:
                check(spec)

    members = gc.get_referents(str.__dict__)[0]
    real_format, real_format_map = members["format"], members["format_map"]

    def format(self: str, /, *given: Any, **named: Any) -> str:
        if "_" in self:
            _try(check, self)
        return real_format(self, *given, **named)  # type: ignore[no-any-return]

    def format_map(self: str, mapping: Any, /) -> str:
        if "_" in self:
            _try(check, self)
        return real_format_map(self, mapping)  # type: ignore[no-any-return]

    members["format"], members["format_map"] = format, format_map
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(str))


def _try(check: Callable[[str], None], template: str) -> None:
    """Check a template; if it cannot be parsed, the real method reports that."""
    try:
        check(str.__str__(template))
    except ValueError:
        pass
