"""Table of prompts: how many are llama.cpp's, from arguments as objects and from arguments as text."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from oxillama.chat import ChatTemplate
from oxillama.errors import OxiLlamaError
from tests.chat.score.recorded import NOW, Prompt, Template, templates

__all__ = ["lines", "table"]

# (what the prompts are of, the prompt as it is given)
FORMS: tuple[tuple[str, Callable[[Prompt], Prompt]], ...] = (("objects", Prompt.with_objects), ("text", lambda p: p))
Make = Callable[[Template], tuple[frozenset[str], Callable[[Prompt], str]]]


def table(folder: Path) -> Iterator[str]:
    """Lines of the table."""
    return lines("ChatTemplate.render", folder, _rendered)


def _rendered(template: Template) -> tuple[frozenset[str], Callable[[Prompt], str]]:
    made = ChatTemplate(template.source, bos_token=template.data["bos_token"], eos_token=template.data["eos_token"])
    return made.variables, lambda prompt: made.render(**prompt.options, **prompt.variables, now=NOW)


def lines(title: str, folder: Path, make: Make) -> Iterator[str]:
    """Lines of a table. make: of a template, the variables that it reads, and what makes a prompt."""
    yield f"{title}: prompts equal to llama.cpp's"
    yield f"{'':42}{'agreed, objects':>16}{'agreed, text':>16}{'its own':>12}{'continued':>12}  other than both"
    total: Counter[str] = Counter()
    for template in templates(folder):
        counts, missed = _count(template, make)
        total += counts
        yield _line(template.name, counts, " ".join(missed))
    yield _line("all", total, "")


def _count(template: Template, make: Make) -> tuple[Counter[str], list[str]]:
    """Numbers of prompts and of equal ones by kind and form, and the names of those that both others agree on."""
    counts: Counter[str] = Counter()
    missed = []
    variables, made = make(template)
    for prompt in template.prompts(variables):
        for form, given in FORMS:
            kind = f"{prompt.kind}, {form}"
            counts[kind] += 1
            try:
                equal = made(given(prompt)) == prompt.text
            except OxiLlamaError:
                equal = False
            counts[f"{kind}, equal"] += equal
            if not equal and prompt.kind == "agreed" and prompt.name not in missed:
                missed.append(prompt.name)
    return counts, missed


def _line(name: str, counts: Counter[str], missed: str) -> str:
    shown = [f"{counts[f'{kind}, equal']} of {counts[kind]}" for kind in ("agreed, objects", "agreed, text")]
    rest = [f"{counts[f'{kind}, text, equal']} of {counts[f'{kind}, text']}" for kind in ("own", "continued")]
    return f"{name:42}{shown[0]:>16}{shown[1]:>16}{rest[0]:>12}{rest[1]:>12}  {missed}".rstrip()
