"""Public names of `trainer` and `pipeline`: lazy imports, and a runnable example for each callable."""

import doctest
from importlib import import_module

import pytest

import pipeline
import trainer

CALLABLES = [
    (package.__name__, name)
    for package in (pipeline, trainer)
    for name in package.__all__
    if callable(getattr(package, name)) and not name.endswith("Config")
]


@pytest.mark.parametrize("package", ["pipeline", "trainer"])
def test_every_public_name_is_importable(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == dir(module)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(("package", "name"), CALLABLES, ids=lambda value: value)
def test_a_public_callable_has_an_example_that_gives_the_output_shown(package: str, name: str) -> None:
    item = getattr(import_module(package), name)
    tests = doctest.DocTestFinder().find(item, f"{package}.{name}", globs={})
    examples = [test for test in tests if test.examples]
    assert examples, f"{package}.{name} has no example"
    for test in examples:
        assert doctest.DocTestRunner().run(test).failed == 0
