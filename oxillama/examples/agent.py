"""An agent: a loop in which the model calls tools, reads what they return, and answers.

    python -m oxillama.examples.agent "Is it warmer in Oslo or in Rome?" -m qwen3-4b-q4_k_m.gguf

Calls are held to the names and schemas of the tools while they are written, and checked again before a function runs.
Whatever goes wrong in a tool is text for the model, not an exception for the program.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any, Literal

import oxillama as ox

TEMPERATURES = {"Oslo": 12, "Rome": 27, "Tokyo": 22}


def temperature(city: Literal["Oslo", "Rome", "Tokyo"]) -> dict[str, Any]:
    """Degrees Celsius in a city"""
    return {"city": city, "celsius": TEMPERATURES[city]}


def difference(a: float, b: float) -> float:
    """a - b"""
    return a - b


TOOLS: list[Callable[..., Any]] = [temperature, difference]  # described by their names, docstrings and annotations
FUNCTIONS = ox.ToolFunctions(TOOLS)

# The model that ships knows no tools. This template lets it take part: it writes calls in Hermes' form.
PLAIN = """{% if tools %}tools: {{ tools | tojson }}
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{
c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def run(engine: ox.Engine, question: str, most_turns: int = 6, **options: Any) -> list[dict[str, Any]]:
    """The whole conversation; its last message is the answer.

    The first turn has to look something up, later ones may, and the last one may not: so the loop ends.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for turn in range(most_turns):
        choice = "required" if turn == 0 else "none" if turn == most_turns - 1 else "auto"
        answer = engine.chat(messages, tools=TOOLS, tool_choice=choice, temperature=0.0, **options)
        messages.append(answer.message)
        if not answer.tool_calls:
            break
        messages += [result.message for result in FUNCTIONS.dispatch_all(answer.tool_calls)]
    return messages


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="an agent with two tools")
    parser.add_argument("question", nargs="?", default="Is it warmer in Oslo or in Rome?")
    parser.add_argument("-m", "--model", help="GGUF file of a model that was trained with tools")
    a = parser.parse_args(arguments)
    options: dict[str, Any] = {} if a.model else {"chat_template": PLAIN}
    with ox.load(a.model) as engine:
        for message in run(engine, a.question, max_tokens=200, parallel_tool_calls=False, **options):
            calls = [call["function"] for call in message.get("tool_calls", ())]
            print(f"{message['role']}: {message['content'] or ''}", *calls)


if __name__ == "__main__":
    try:
        main()
    except (ox.OxiLlamaError, OSError) as error:  # a file that is missing, or no model
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
