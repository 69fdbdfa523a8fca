"""Tests of the server are left out where its extra is not installed."""

import importlib.util

EXTRA = ("starlette", "uvicorn", "python_multipart", "prometheus_client", "websockets", "openai")

collect_ignore_glob = [] if all(map(importlib.util.find_spec, EXTRA)) else ["test_serve_*.py"]
