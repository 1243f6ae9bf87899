"""YAML from the user: its limits, scalars that keep how they were written, and the writing of plain values.

No tag of a text builds an object of Python, and what aliases (*name) repeat counts as if it were written out.
"""

import re
from collections.abc import Hashable
from typing import Any, Final

import yaml

MAX_CHARS: Final = 1_000_000
MAX_DEPTH: Final = 50
TOO_DEEP: Final = f"values are nested more than {MAX_DEPTH} deep; remove the inner ones"


class Written(str):
    """A scalar without quotes that YAML reads as a number or a truth value, `value`, as it was written: 007, 1e3, no."""

    value: bool | int | float

    def __new__(cls, text: str, value: bool | int | float) -> "Written":
        """Make one of a text and what YAML reads in it."""
        self = super().__new__(cls, text)
        self.value = value
        return self

    def __getnewargs__(self) -> tuple[str, bool | int | float]:  # type: ignore[override]
        """Return what a copy is made of."""
        return str(self), self.value


def plain(values: Any) -> Any:
    """Return nested values as YAML reads them."""
    match values:
        case Written():
            return values.value
        case dict():
            return {key: plain(value) for key, value in values.items()}
        case list():
            return [plain(value) for value in values]
    return values


TAG: Final = "tag:yaml.org,2002:"
MAX_NUMBER: Final = 100
"""Characters of the longest number; PyYAML's rules and its base 60 take the square of the time for longer ones."""
NUMBER: Final = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
"""Numbers with an exponent, such as 1e3, which PyYAML reads as a text."""
RESOLVERS: Final = {
    first: [*(rule for rule in rules if rule[0] != f"{TAG}timestamp"), (f"{TAG}float", NUMBER)]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
"""PyYAML's rules for what a scalar is, by its first character, with NUMBER and without those for dates."""


class Loader(yaml.SafeLoader):
    """Builds null, truth values and numbers as `Written`, texts, lists, and mappings whose keys are texts."""

    yaml_implicit_resolvers = RESOLVERS
    yaml_constructors = {  # noqa: RUF012
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(f"{TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")))
    }
    depth = n_repeated = 0

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        """Return the tag of a value; a scalar that is too long for a number is a text."""
        if kind is yaml.ScalarNode and value is not None and len(value) > MAX_NUMBER:
            value = f'"{value[0]}'  # which no rule takes
        return str(super().resolve(kind, value, implicit))

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value, and once more for every alias (*name) of it. Raises ValueError with the line at a limit."""
        self.depth += isinstance(node, yaml.CollectionNode)
        if self.depth > MAX_DEPTH:
            raise ValueError(f"line {node.start_mark.line + 1}: {TOO_DEEP}")
        if node in self.constructed_objects:
            del self.constructed_objects[node]
            self.n_repeated += node.end_mark.index - node.start_mark.index
            if self.n_repeated > MAX_CHARS:
                raise ValueError(f"line {node.start_mark.line + 1}: aliases repeat more than {MAX_CHARS} characters")
        value = super().construct_object(node, deep=True)
        self.depth -= isinstance(node, yaml.CollectionNode)
        return value

    def construct_written(self, node: yaml.ScalarNode) -> Written:
        """Build a number or a truth value. Raises ValueError for one that is too long, which has a tag of its own."""
        if len(node.value) > MAX_NUMBER:
            raise ValueError(f"{node.tag.rpartition(':')[2]} of more than {MAX_NUMBER} characters cannot be converted")
        return Written(node.value, yaml.SafeLoader.yaml_constructors[node.tag](self, node))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping. Raises yaml.YAMLError for a key that is no scalar, or that occurs twice."""
        found: dict[Hashable, Any] = {}
        for (key, _), (_, value) in zip(node.value, self.construct_pairs(node), strict=True):
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                problem = f"found duplicate key {key.value}" if isinstance(key, yaml.ScalarNode) else "a key is no text"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            found[key.value] = value
        return found


class Dumper(yaml.SafeDumper):
    """Writes what Loader reads."""

    yaml_implicit_resolvers = RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values in full."""
        return True


for name in ("bool", "int", "float"):
    Loader.add_constructor(f"{TAG}{name}", Loader.construct_written)


def parse_yaml(text: str) -> Any:
    """Return the values of a YAML document, scalars without quotes as `Written`.

    Raises ValueError if it exceeds a limit or a value cannot be converted, yaml.YAMLError if it is not valid.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"it has {len(text)} characters; a configuration has at most {MAX_CHARS}")
    try:
        return yaml.load(text, Loader)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (LookupError, TypeError, ArithmeticError) as error:  # such as of !!bool x, and of "\Uffffffff"
        raise ValueError(f"a value cannot be converted ({type(error).__name__})") from None


def parse_value(text: str) -> Any:
    """Return the value of an argument: YAML in brackets or quotes, else a scalar or any text, such as a condition.

    Raises ValueError or yaml.YAMLError like `parse_yaml`.
    """
    text = text.strip()
    if text.startswith(("[", "{", "'", '"')):
        try:
            return parse_yaml(text)
        except yaml.MarkedYAMLError:
            if text.startswith(("[", "{")):
                raise
            return text  # such as "x" in names
    loader = Loader(text)  # which refuses control characters
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, text)) if tag in Loader.yaml_constructors else text


def dump_yaml(values: Any) -> str:
    """Return plain values as YAML."""
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
