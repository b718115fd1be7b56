"""Prints README's table of architectures: python -m oxillama.models"""

from oxillama.models.registry import all_architectures, refused_architectures


def table() -> str:
    """One row for each architecture, and one for all that are refused by name, in Markdown."""
    rows = [f"| `{a.name}` | {a.models} | {a.verified} |" for a in all_architectures().values()]
    refused = ", ".join(f"`{name}`" for name in refused_architectures())
    head = ["| `general.architecture` | models | verified with |", "|---|---|---|"]
    return "\n".join([*head, *rows, *([f"\nRefused by name, with the reason: {refused}."] if refused else [])])


if __name__ == "__main__":
    print(table())
