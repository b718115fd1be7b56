"""Chat templates of the project's own: one for each shape that published ones have."""

__all__ = ["CALLS", "LAST", "OPENED", "REASONS", "by_role", "calls_as"]


def by_role(**bodies: str) -> str:
    """A template with a body for each role; others are left out without a word."""
    cases = "".join(f"{{% if m.role == '{role}' %}}{body}{{% endif %}}" for role, body in bodies.items())
    return "{% for m in messages %}" + cases + "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


def calls_as(arguments: str) -> str:
    """A template with calls, whose arguments this expression prints."""
    call = (
        "{% for c in m.tool_calls or [] %}(" + "{{ c.id }}:{{ c.function.name }}:{{ " + arguments + " }}){% endfor %}"
    )
    return by_role(
        system="<s>{{ m.content }}</s>",
        user="<u>{{ m.content }}</u>",
        assistant="<a>{{ m.content }}" + call + "</a>",
        tool="<t {{ m.tool_call_id }} {{ m.name }}>{{ m.content }}</t>",
    )


CALLS = calls_as("c.function.arguments | tojson")


def REASONS(name: str) -> str:
    """A template that prints reasoning of this field, but for answers before the last question."""
    return (
        "{% set ns = namespace(last=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>"
        "{% if m." + name + " and loop.index > ns.last %}<think>{{ m." + name + " }}</think>{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}</a>"
        "{% else %}<{{ m.role[0] }}>{{ m.content }}</{{ m.role[0] }}>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}"
    )


# Reasoning is never printed, and the generation prompt opens it.
OPENED = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content.split('</think>')[-1] | trim }}</{{ m.role[0] }}>{% endfor %}"
    "{% if add_generation_prompt %}<a><think>\n{% endif %}"
)
# The system's message stands in the last one of the user.
LAST = (
    "{% set ns = namespace(said='') %}"
    "{% for m in messages %}{% if m.role == 'system' %}{% set ns.said = m.content ~ '|' %}"
    "{% else %}<{{ m.role[0] }}>{{ ns.said if loop.last }}{{ m.content }}</{{ m.role[0] }}>{% endif %}{% endfor %}"
)
