"""Ray Serve: replicas of a model on the nodes of a cluster, behind the HTTP API of `oxillama.server`.

Needs the extra `ray`, which is imported when an application is made.
"""

from oxillama.ray.serving import serve_app

__all__ = ["serve_app"]
