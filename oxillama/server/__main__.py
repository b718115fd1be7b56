"""Prints the tables of the server's manual: python -m oxillama.server"""

from oxillama.server.tables import pages


def tables() -> str:
    """All of them, as the manual has them."""
    return "\n\n".join(pages())


if __name__ == "__main__":
    print(tables())
