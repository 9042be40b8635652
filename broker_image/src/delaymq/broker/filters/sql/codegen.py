"""Code generator: compiles a syntax tree to a Python function over raw property bytes.

The function looks up only the properties that its evaluation reaches, and each of them once. Types are known beforehand
(a property is a string or null), so a comparison takes one operator and at most one conversion. Texts of the expression
reach the generated code only as constants, never as code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, assert_never

from delaymq.broker.filters.sql import values
from delaymq.broker.filters.sql.ast import (
    And,
    Comparison,
    Constant,
    Equals,
    Exists,
    In,
    IsNull,
    Kind,
    Negative,
    Node,
    Not,
    Or,
    Property,
)

MAX_INDENTATION: Final = 60
"""Python allows at most 100 levels of indentation. Deeper nodes become separate functions."""

_HELPERS: Final = {
    "int": values.to_int,
    "long": values.to_long,
    "double": values.to_finite_order,
    "boolean": values.to_boolean,
    "order_of": values.order_of,
    "no_boolean": values.no_boolean,
    "last_but": values.last_but,
}


class _Value(NamedTuple):
    """Generated Python expression for a node's value."""

    kind: Kind
    text: str
    may_be_null: bool
    constant: Constant | None = None


_NULL: Final = _Value("null", "None", True)


def matcher_of(condition: Node) -> Callable[[bytes], bool]:
    """Return the test of a record's raw property bytes. It never raises."""
    module = _Module()
    module.write_function("matches", condition, is_outermost=True)
    scope: dict[str, object] = {f"to_{name}": helper for name, helper in _HELPERS.items()}
    scope |= module.constants
    exec(compile("\n".join(module.lines), "<SQL92>", "exec"), scope)
    return scope["matches"]  # type: ignore[return-value]


class _Module:
    """All functions of one expression, and their shared constants."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, object] = {}
        self._names: dict[object, str] = {}
        self._functions = 0

    def constant(self, value: object) -> str:
        """Return the name of the constant `value` in the code."""
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = f"k{len(self._names)}"
            self.constants[name] = value
        return name

    def write_function(self, name: str, node: Node, *, is_outermost: bool) -> None:
        """Add a function of the property bytes that returns the node's value. The outermost takes the raw bytes."""
        function = _Function(self)
        if is_outermost:
            function.put("raw = b'\\2%b\\2' % raw")
            function.put("try:")
            with function.indented():
                function.put(f"return {function.value(node).text} is True")
            function.put("except ValueError:")
            with function.indented():
                function.put("return False")
        else:
            function.put(f"return {function.value(node).text}")
        self.lines += [f"def {name}(raw):", *function.lines]

    def next_function(self) -> str:
        """Return a name for another function."""
        self._functions += 1
        return f"part{self._functions}"


class _Function:
    """Writer of one function's body."""

    def __init__(self, module: _Module) -> None:
        self.lines: list[str] = []
        self._module = module
        self._indentation = 1
        self._variables = 0
        self._known: frozenset[str] = frozenset()
        """Properties whose variables are set at the current position."""

    def put(self, line: str) -> None:
        """Append a line."""
        self.lines.append(" " * self._indentation + line)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines of a conditional block."""
        known = self._known
        self._indentation += 1
        yield
        self._indentation -= 1
        self._known = known

    def value(self, node: Node) -> _Value:
        """Write the evaluation of `node` and return its value."""
        if self._indentation > MAX_INDENTATION and isinstance(node, (And, Or)):
            name = self._module.next_function()
            self._module.write_function(name, node, is_outermost=False)
            return _Value("boolean", self._stored(f"{name}(raw)"), True)
        if isinstance(node, Constant):
            return self._constant(node)
        if isinstance(node, Property):
            return _Value("string", self._property(node.name), True)
        if isinstance(node, Negative):
            self.value(node.of)
            return _NULL
        if isinstance(node, IsNull):
            return self._is_null(node)
        return _Value("boolean", self._condition(node), True)

    def _condition(self, node: Exists | Not | And | Or | Equals | Comparison | In) -> str:
        if isinstance(node, And):
            return self._chain(node.parts, undecided="is not False", keep="is not True")
        if isinstance(node, Or):
            return self._chain(node.parts, undecided="is not True", keep="is not False")
        if isinstance(node, Comparison):
            return self._compared(node)
        if isinstance(node, Equals):
            return self._equal(self.value(node.left), self.value(node.right))
        if isinstance(node, In):
            name = self._property(node.name)
            strings = self._module.constant(frozenset(_bytes(each) for each in node.strings))
            return self._stored(f"None if {name} is None else {name} {'in' if node.wanted else 'not in'} {strings}")
        if isinstance(node, Exists):
            return self._stored(f"None if {self._property(node.name)} is None else False")
        if isinstance(node, Not):
            of = self.value(node.of).text
            return self._stored(f"None if {of} is None else not {of}")
        assert_never(node)

    def _chain(self, parts: tuple[Node, ...], *, undecided: str, keep: str) -> str:
        result = self._stored(self.value(parts[0]).text)
        for part in parts[1:]:
            self.put(f"if {result} {undecided}:")
            with self.indented():
                value = self.value(part).text
                self.put(f"if {value} {keep}: {result} = {value}")
        return result

    def _constant(self, node: Constant) -> _Value:
        if isinstance(node.value, str):
            text = self._module.constant(_bytes(node.value))
        else:
            text = repr(node.value)
        return _Value(node.kind, text, node.value is None, node)

    def _property(self, name: str) -> str:
        mark = b"\2%b\1" % name.encode()
        variable = self._module.constant(mark).replace("k", "v")
        if name in self._known:
            return variable
        self._known |= {name}
        self.put(f"{variable} = raw.rfind({variable.replace('v', 'k')})")
        self.put(f"if {variable} < 0: {variable} = None")
        self.put("else:")
        begin, end = f"{variable} + {len(mark)}", f"raw.find(2, {variable} + {len(mark)})"
        self.put(f" {variable} = raw[{begin}:{end}] or to_last_but(raw, {variable.replace('v', 'k')})")
        return variable

    def _is_null(self, node: IsNull) -> _Value:
        of = self.value(node.of)
        return _Value("boolean", self._stored(f"{of.text} is None" if of.may_be_null else "False"), False)

    def _equal(self, left: _Value, right: _Value) -> str:
        # Two nulls are equal. A null on the left alone gives null, on the right alone false.
        equal = _equality(left, right)
        if left.kind == "null":
            return self._stored(f"True if {right.text} is None else None" if right.may_be_null else "None")
        if right.kind == "null":
            return self._stored(f"{left.text} is None" if left.may_be_null else "False")
        if right.may_be_null:
            equal = f"False if {right.text} is None else {equal}"
        if left.may_be_null:
            of_null = f"({right.text} is None or None)" if right.may_be_null else "None"
            equal = f"{of_null} if {left.text} is None else {equal}"
        return self._stored(equal)

    def _compared(self, node: Comparison) -> str:
        left = self.value(node.left)
        if left.kind == "null":
            return "None"
        if isinstance(node.right, Negative):
            # The result is always null, but evaluating the operand may fail.
            self.put(f"if {left.text} is not None:" if left.may_be_null else "if True:")
            with self.indented():
                self.value(node.right)
                self.put("pass")
            return "None"
        right = self.value(node.right)
        text = _ordering(left, right, node.order)
        nulls = " or ".join(f"{side.text} is None" for side in (left, right) if side.may_be_null)
        return self._stored(f"None if {nulls} else {text}" if nulls else text)

    def _stored(self, text: str) -> str:
        self._variables += 1
        self.put(f"t{self._variables} = {text}")
        return f"t{self._variables}"


def _ordering(left: _Value, right: _Value, order: str) -> str:
    if left.kind == "string" and right.kind == "string":
        return f"to_order_of({left.text}, {right.text}) {order} 0"
    return f"{_as(left, right)} {order} {_as(right, left)}"


def _equality(left: _Value, right: _Value) -> str:
    kinds = {left.kind, right.kind}
    if left.kind == "boolean" and right.kind == "string":
        return "to_no_boolean()"
    if "boolean" in kinds and kinds & {"int", "long", "double"}:
        return "False"
    return f"{_as(left, right)} == {_as(right, left)}"


def _as(value: _Value, other: _Value) -> str:
    """Return `value`, converted for a comparison with `other`."""
    if value.kind == "string" and other.kind != "string":
        return f"to_{other.kind}({value.text})"
    if value.constant is not None and value.kind in ("int", "long") and other.kind == "double":
        return repr(float(value.constant.value or 0))
    return value.text


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
