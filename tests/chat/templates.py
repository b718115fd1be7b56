"""Chat templates of every shape of calls, written for these tests."""

__all__ = ["OPENED", "TEMPLATES", "THINKING"]


def chat(
    call: str, *, before: str = "", between: str = "", after: str = "", think: str = "", end: str = "<|end|>"
) -> str:
    """A template with turns between marks. call: of one call `c`; before, between, after: around all calls."""
    thought = f"{{% if m.reasoning_content %}}{think}{{% endif %}}" if think else ""
    return (
        "{% for m in messages %}<|{{ m.role }}|>\n"
        "{% if m.role == 'assistant' %}" + thought + "{{ m.content }}"
        "{% if m.tool_calls %}" + before + "{% for t in m.tool_calls %}{% set c = t.function %}"
        "{% if not loop.first %}" + between + "{% endif %}" + call + "{% endfor %}" + after + "{% endif %}"
        "{% else %}{{ m.content }}{% endif %}" + end + "\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )


PLAIN = '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
VALUE = "{{ v if v is string else v | tojson }}"
THINK = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"

ARGUMENTS = "{{ c.arguments | tojson }}"
ITEMS = "{% for k, v in c.arguments.items() %}"
COMMA = "{% if not loop.last %}, {% endif %}"
LITERAL = '{{ "\'" ~ v ~ "\'" if v is string else v | tojson }}'
# Values in braces, and in nested tags.
BRACES = (
    "{% macro w(v) %}{% if v is string %}<|q|>{{ v }}<|q|>"
    "{% elif v is mapping %}{ {%- for k, i in v | dictsort %}{{ k }}:{{ w(i) }}{% if not loop.last %},{% endif %}"
    "{% endfor -%} }{% elif v is sequence %}[{% for i in v %}{{ w(i) }}{% if not loop.last %},{% endif %}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
NESTED = (
    "{% macro w(v) %}{% if v is mapping %}{% for k, i in v.items() %}@<{{ k }}>{{ w(i) }}@</{{ k }}>{% endfor %}"
    "{% elif v is sequence and v is not string %}{% for i in v %}@<item>{{ w(i) }}@</item>{% endfor %}"
    "{% elif v is string %}{{ v }}{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
WITH_IDS = '{"id": "{{ loop.index0 }}", "tool": "{{ c.name }}", "parameters": ' + ARGUMENTS + "}"
TAGGED = ITEMS + "<arg={{ k }}>\n" + VALUE + "\n</arg>\n{% endfor %}"
KEYS = ITEMS + "<k>{{ k }}</k>\n<v>" + VALUE + "</v>\n{% endfor %}"
TYPES = ITEMS + '<with key="{{ k }}" text="{{ "yes" if v is string else "no" }}">' + VALUE + "</with>\n{% endfor %}"

TEMPLATES = {
    "object": chat("<call>\n" + PLAIN + "\n</call>", between="\n"),
    "object-bare": chat(PLAIN.replace('arguments"', 'parameters"')),
    "list": chat(PLAIN, before="<calls>[", between=", ", after="]</calls>"),
    "name-is-key": chat(
        '{"{{ c.name }}": ' + ARGUMENTS + "}", before="<|begin_calls|>[", between=", ", after="]<|end_calls|>"
    ),
    "list-with-ids": chat(WITH_IDS, before="[CALLS][", between=", ", after="]"),
    "named": chat("[CALL]{{ c.name }}[ARGS]" + ARGUMENTS),
    "named-with-id": chat("[CALL]{{ c.name }}[ID]{{ t.id }}[ARGS]" + ARGUMENTS),
    "named-in-section": chat(
        "<|call|>tools.{{ c.name }}:{{ loop.index0 }}<|args|>" + ARGUMENTS + "<|call_end|>",
        before="<|calls|>",
        after="<|calls_end|>",
    ),
    "named-attribute": chat("<fn={{ c.name }}>" + ARGUMENTS + "</fn>"),
    "tagged": chat("<do>\n<fn={{ c.name }}>\n" + TAGGED + "</fn>\n</do>", between="\n"),
    "tagged-keys": chat("<do>{{ c.name }}\n" + KEYS + "</do>"),
    "tagged-types": chat('<run name="{{ c.name }}">\n' + TYPES + "</run>\n", before="<runs>\n", after="</runs>"),
    "python": chat(
        "{{ c.name }}(" + ITEMS + "{{ k }}=" + LITERAL + COMMA + "{% endfor %})",
        before="<|py|>[",
        between=", ",
        after="]<|py_end|>",
    ),
    "braces": chat(BRACES + "<|do|>call:{{ c.name }}{{ w(c.arguments) }}<do|>"),
    "nested": chat(
        NESTED + '@<run name="{{ c.name }}">{{ w(c.arguments) }}@</run>\n', before="@<do>\n", after="@</do>"
    ),
}

THINKING = {
    "think": chat("<call>\n" + PLAIN + "\n</call>", between="\n", before="\n", think=THINK),
    "brackets": chat("[CALL]{{ c.name }}[ARGS]" + ARGUMENTS, think="[MUSE]{{ m.reasoning_content }}[/MUSE]"),
    "start-and-end": chat(
        PLAIN,
        before="<|START_DO|>[",
        between=", ",
        after="]<|END_DO|>",
        think="<|START_MUSING|>{{ m.reasoning_content }}<|END_MUSING|>",
    ),
    "channel": chat(
        "<|do|>{{ c.name }}<|with|>" + ARGUMENTS + "<do|>", think="<|muse>aloud\n{{ m.reasoning_content }}\n<muse|>"
    ),
}
# The prompt opens the reasoning, unless it is told not to.
OPENED = THINKING["think"].replace(
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{% if add_generation_prompt %}<|assistant|>\n<think>\n"
    "{% if enable_thinking is false %}\n</think>\n\n{% endif %}{% endif %}",
)
