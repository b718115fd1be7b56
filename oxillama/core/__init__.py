"""Core: the step loop, the requests that it serves, and the handles that callers hold.

`engine_core.EngineCore.step` is the loop: it schedules, computes, absorbs rows and releases. `request.py` is a
request's life, `generation_request.py` the request that draws tokens, `request_factory.py` makes them of prompts and
options.
"""
