"""Lineage: whether this code runs inside a job, and how deep.

A worker sets the lineage with `tasks/current.py:become`, and passes it, in the variables
`CASQUE_JOB_ID` and `CASQUE_DEPTH`, to the programs that the worker starts. Every enqueue checks the
lineage. So jobs that enqueue each other in a loop are refused instead of running forever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from casque.errors import InvalidError
from casque.job import Job

JOB_ID_VARIABLE = "CASQUE_JOB_ID"
DEPTH_VARIABLE = "CASQUE_DEPTH"
_LONGEST_ID = 512
_LONGEST_DEPTH = 9


class Lineage(NamedTuple):
    """The data that a new job inherits: the number and the entrypoints of the jobs above it."""

    depth: int
    chain: tuple[str, ...]


OUTSIDE = Lineage(0, ())
# The dict inside os.environ: looking up a missing key in os.environ itself takes five function
# calls and an exception, at every enqueue.
_ENVIRONMENT: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
_DEPTH_KEY = getattr(os.environ, "encodekey", str)(DEPTH_VARIABLE)
running: ContextVar[Any] = ContextVar("casque_running", default=None)
"""The RunningJob (tasks/current.py) that this code runs in; None outside a job."""


def inherited() -> Lineage:
    """The lineage of jobs this code enqueues."""
    inside = running.get()
    if inside is not None:
        return below(inside.job)
    if _DEPTH_KEY not in _ENVIRONMENT:
        return OUTSIDE
    text = os.environ[DEPTH_VARIABLE]
    if not text.isdecimal() or len(text) > _LONGEST_DEPTH:
        raise InvalidError(
            f"{DEPTH_VARIABLE}={text[:50]!r} in the environment is not a whole number; unset it, "
            "or set it to the depth of the job that runs this program."
        )
    # Bytes that are not text arrive as lone surrogates, which cannot be stored.
    job_id = os.environ.get(JOB_ID_VARIABLE, "?").encode(errors="replace").decode()
    return Lineage(int(text) + 1, (f"job {job_id[:_LONGEST_ID]}",))


def below(job: Job) -> Lineage:
    """The lineage of a job enqueued by `job`."""
    return Lineage(job.depth + 1, (*job.chain, job.entrypoint))
