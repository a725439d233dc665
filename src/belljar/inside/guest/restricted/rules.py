"""The names and imports that a restricted program may use, and the messages for those it may not.

The messages are mostly read by a model that writes the next version: each says what is not available and what to use
instead. Only this module decides about names, whether they are in the source (`source.py`) or are computed while the
program runs (`builtins.py`).
"""

from __future__ import annotations

ANYTHING = "*"  # as in smolagents: every import is allowed


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Special methods and attributes that a program may define and use.
_HARMLESS = _words(
    """
    __init__ __new__ __post_init__ __init_subclass__ __set_name__ __del__
    __str__ __repr__ __format__ __bytes__ __hash__ __bool__ __len__ __length_hint__ __sizeof__
    __lt__ __le__ __eq__ __ne__ __gt__ __ge__
    __int__ __float__ __complex__ __index__ __round__ __trunc__ __floor__ __ceil__
    __iter__ __next__ __reversed__ __contains__ __getitem__ __setitem__ __delitem__ __missing__ __class_getitem__
    __call__ __enter__ __exit__ __await__ __aiter__ __anext__ __aenter__ __aexit__
    __getattr__ __setattr__ __delattr__ __dir__ __copy__ __deepcopy__
    __add__ __sub__ __mul__ __matmul__ __truediv__ __floordiv__ __mod__ __divmod__ __pow__
    __lshift__ __rshift__ __and__ __xor__ __or__
    __radd__ __rsub__ __rmul__ __rmatmul__ __rtruediv__ __rfloordiv__ __rmod__ __rdivmod__ __rpow__
    __rlshift__ __rrshift__ __rand__ __rxor__ __ror__
    __iadd__ __isub__ __imul__ __imatmul__ __itruediv__ __ifloordiv__ __imod__ __ipow__
    __ilshift__ __irshift__ __iand__ __ixor__ __ior__
    __neg__ __pos__ __abs__ __invert__
    __name__ __qualname__ __doc__ __module__ __version__ __annotations__ __slots__ __members__
    __array__ __array_ufunc__ __array_function__ __array_priority__
    """
)
#: Only to define: reading them from an object would be a way around the rules.
_ONLY_DEFINED = _words("__get__ __set__ __delete__")
#: Allowed only as plain names, not as attributes.
_ONLY_NAMES = _words("__debug__ __file__ __all__ __author__ __future__")
#: Attributes that lead from a running program into the interpreter: frames, their variables, their code.
_INSPECTION = _words(
    """
    tb_frame tb_next f_back f_builtins f_code f_generator f_globals f_locals f_trace co_code co_consts co_names
    gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await
    func_globals func_code
    """
)
#: Names with an underscore that are part of a public interface (named tuples, enumerations).
PUBLIC_UNDERSCORES = _words(
    "_ _asdict _fields _field_defaults _make _replace _name_ _value_ _missing_ _ignore_ _generate_next_value_"
)

_ADVICE_FOR_ATTRIBUTES = {
    "__class__": "use type(x) or isinstance(x, …); x.__class__.__name__ is fine",
    "__dict__": "use vars(x)",
    "__bases__": "use isinstance or issubclass",
    "__base__": "use isinstance or issubclass",
    "__mro__": "use isinstance or issubclass",
    "__subclasses__": "keep a list of the classes that you define",
    "__traceback__": "print the exception itself",
    "__getattribute__": "define __getattr__, or use getattr",
    "__get__": "read the attribute in the ordinary way",
    "__import__": "use an import statement",
    "__builtins__": "call the built-in functions by their names",
    "__match_args__": "name the attributes in the pattern, as in Point(x=a, y=b)",
    "__metaclass__": "use plain classes",
}
_NO_FILES = "no file can be opened; put the data into the program, and print the results"
_NO_CODE_FROM_TEXT = "write the code itself; to choose what to call, keep functions in a dict"
ADVICE_FOR_FUNCTIONS = {
    "open": _NO_FILES,
    "eval": _NO_CODE_FROM_TEXT,
    "exec": _NO_CODE_FROM_TEXT,
    "compile": _NO_CODE_FROM_TEXT,
    "__import__": "use an import statement",
    "input": "there is no keyboard: assign the value in the program",
    "globals": "keep a dict of your own",
    "locals": "name the variables, for example in an f-string",
    "breakpoint": "print what you want to know",
    "help": "print what you want to know",
    "memoryview": "use bytes, bytearray or slices",
}


class Rules:
    """The rules for one program."""

    def __init__(self, imports: list[str]) -> None:
        self.imports = imports
        self._allows_all = ANYTHING in imports
        self._allowed = frozenset(name[:-2] if name.endswith(".*") else name for name in imports)

    def may_import(self, module: str) -> bool:
        """Whether the module or a package that contains it is allowed."""
        if self._allows_all or module == "__future__":
            return True
        while module:
            if module in self._allowed:
                return True
            module = module.rpartition(".")[0]
        return False

    def leads_to_allowed(self, package: str) -> bool:
        """Whether a module inside the package is allowed, though the package itself is not."""
        return any(name.startswith(package + ".") for name in self._allowed)

    def refuse_import(self, module: str) -> str:
        """Return the message for an import that is not allowed."""
        listed = ", ".join(sorted(self._allowed)) or "nothing"
        return (
            f"import of {module!r} is not allowed here. Allowed: {listed}. "
            "Use these, or plain Python; files, processes and the network are not available"
        )

    @staticmethod
    def refuse_attribute(name: str) -> str | None:
        """Return the message for an attribute that is not allowed; None if it is."""
        if name in _INSPECTION:
            return f"attribute {name!r} is not available here: programs cannot use frames and code objects"
        if is_dunder(name) and name not in _HARMLESS:
            advice = _ADVICE_FOR_ATTRIBUTES.get(name, "work with the object's ordinary attributes and methods")
            return f"attribute {name!r} is not available here: {advice}"
        return None

    @staticmethod
    def refuse_name(name: str) -> str | None:
        """Return the message for a name that may not be defined or used; None if it may."""
        if not is_dunder(name) or name in _HARMLESS or name in _ONLY_DEFINED or name in _ONLY_NAMES:
            return None
        advice = ADVICE_FOR_FUNCTIONS.get(name) or _ADVICE_FOR_ATTRIBUTES.get(name) or "choose another name"
        return f"name {name!r} is not available here: {advice}"

    @staticmethod
    def refuse_function(name: str) -> str:
        """Return the message for a built-in function that is not available."""
        return f"{name}() is not available here: {ADVICE_FOR_FUNCTIONS[name]}"


def is_dunder(name: str) -> bool:
    """Whether the language reserves this name: two underscores on both sides."""
    return name[:2] == "__" == name[-2:] and len(name) > 4


def is_private(name: str) -> bool:
    """Whether the name starts with an underscore and is thus private to its class or module."""
    return name[:1] == "_" and not is_dunder(name) and name not in PUBLIC_UNDERSCORES
