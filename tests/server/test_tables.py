"""The manual's tables and OpenAPI: what the tables of fields say."""

from pathlib import Path

from oxillama.server.__main__ import tables
from oxillama.server.routes import ROUTES
from oxillama.server.tables import openapi

README = Path(__file__).parents[2] / "oxillama" / "server" / "README.md"


def test_the_manual_has_the_tables():
    _, mark, printed = README.read_text().partition("\n## Tables\n")
    assert mark
    assert printed.strip() == tables(), "put what `python -m oxillama.server` prints below ## Tables of its README.md"


def test_every_route_is_described():
    paths = openapi()["paths"]
    assert {(m.upper(), p) for p, methods in paths.items() for m in methods} == {
        (e.method, e.path.replace(":path", "")) for e in ROUTES
    }
    for endpoint in ROUTES:
        if endpoint.record is not None:
            said = paths[endpoint.path][endpoint.method.lower()]["requestBody"]["content"]["application/json"]["schema"]
            assert set(said["properties"]) == {field.name for field in endpoint.record.fields}
