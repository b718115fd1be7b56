"""Calls of functions: with valid arguments, and every fault is a result that describes it."""

import json

import pytest

from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.chat.dispatch import ToolDispatcher, ToolFunctions, read_tools
from oxillama.errors import ConfigError, ToolArgumentsError, ToolCallError, ToolError, ToolFailedError, UnknownToolError


def described(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "…", "parameters": parameters}}


TOOLS = [described("add", a={"type": "integer"}, b={"type": "integer"}), described("greet", who={"type": "string"})]
CALLS = []


def add(a, b):
    CALLS.append((a, b))
    return a + b


def make(**others):
    return ToolFunctions(TOOLS, {"add": add, "greet": lambda who: f"Grüß dich, {who}!", **others})


def call(name, **arguments):
    return ToolCall(name, arguments, "call00007")


def test_results_of_functions_are_contents():
    functions = make()
    assert isinstance(functions, ToolDispatcher)
    done = functions.dispatch(call("add", b=2, a=1))
    assert (done.content, done.error) == ("3", None)
    assert done.message == {"role": "tool", "tool_call_id": "call00007", "name": "add", "content": "3"}
    assert functions.dispatch(call("greet", who="é")).content == "Grüß dich, é!"
    both = functions.dispatch_all([call("add", a=1, b=1), call("nothing")])
    assert [result.error is None for result in both] == [True, False]


@pytest.mark.parametrize("value", [None, True, 1.5, [1, "é"], {"a": None}])
def test_other_results_become_json(value):
    assert json.loads(make(greet=lambda who: value).dispatch(call("greet", who="x")).content) == value


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (call("subtract", a=1, b=2), UnknownToolError, "there is no tool 'subtract'; there are add, greet"),
        (call("__class__"), UnknownToolError, "there is no tool"),
        (call("add", a=1), ToolArgumentsError, "add: arguments must have 'b'"),
        (call("add", a=1, b="2"), ToolArgumentsError, 'add: arguments.b must be of type integer, not "2"'),
        (
            BrokenToolCall("<tool_call>{", "the text ends inside of it", False, "call00001"),
            ToolCallError,
            "ends inside",
        ),
    ],
)
def test_faults_of_the_model_are_results(asked, error, message):
    CALLS.clear()
    result = make().dispatch(asked)
    assert isinstance(result.error, error)
    assert isinstance(result.error, ToolError)
    assert message in str(result.error)
    assert result.content == f"error: {result.error}"
    assert result.message["tool_call_id"] == asked.id
    assert CALLS == []


def test_faults_of_a_tool_are_results():
    def broken(who):
        raise KeyError(who)

    result = make(greet=broken).dispatch(call("greet", who="x"))
    assert isinstance(result.error, ToolFailedError)
    assert isinstance(result.error.__cause__, KeyError)
    assert "greet failed: KeyError" in result.content
    assert isinstance(make(greet=lambda who: {1, 2}).dispatch(call("greet", who="x")).error, ToolFailedError)
    assert isinstance(make(greet=lambda who: float("nan")).dispatch(call("greet", who="x")).error, ToolFailedError)
    assert isinstance(make(greet=lambda: 1).dispatch(call("greet", who="x")).error, ToolFailedError)


def test_an_interrupt_is_no_fault_of_a_tool():
    def interrupt(who):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(greet=interrupt).dispatch(call("greet", who="x"))


@pytest.mark.parametrize(
    ("tools", "functions", "message"),
    [
        (TOOLS, {"add": add}, "the tool 'greet' is missing in functions"),
        ([], {"add": add}, "the tool 'add' is missing in tools"),
        (TOOLS, {"add": add, "greet": 3}, "functions must map"),
        (TOOLS, [add], "functions must map"),
        ([*TOOLS, TOOLS[0]], {}, "name 'add' of an earlier tool"),
        ([described("x", a={"mystery": 1})], {"x": add}, "keyword 'mystery', which can't be checked"),
        ([{"type": "function"}], {}, r"tools\[0\] must be"),
        ([{"function": {"name": ""}}], {}, r"tools\[0\] must be"),
        (["add"], {}, r"tools\[0\] must be"),
        ([{"function": {"name": "f", "parameters": 3}}], {}, "must have a schema"),
        ({"name": "f"}, {}, "tools must be a list"),
        ("add", {}, "tools must be a list"),
    ],
)
def test_bad_tools_are_refused(tools, functions, message):
    with pytest.raises(ConfigError, match=message):
        ToolFunctions(tools, functions)


def test_descriptions_of_both_forms():
    assert read_tools([{"name": "f"}, {"type": "function", "function": {"name": "g", "parameters": {"a": 1}}}]) == {
        "f": {},
        "g": {"a": 1},
    }
