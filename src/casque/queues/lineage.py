"""Lineage: whether this code runs inside a job, and how deep.

A worker sets the lineage with `tasks/current.py:become`. Programs that a job starts get it in
environment variables (`variables`). Every enqueue checks the lineage. So jobs that enqueue each
other in a loop are refused instead of running forever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec

from casque.errors import InvalidError
from casque.job import Job

JOB_ID_VARIABLE = "CASQUE_JOB_ID"
ATTEMPT_VARIABLE = "CASQUE_ATTEMPT"
DEPTH_VARIABLE = "CASQUE_DEPTH"
CHAIN_VARIABLE = "CASQUE_CHAIN"
"""The jobs above the job, as a JSON array of texts, so that a refusal can name all of them."""
STORE_VARIABLE = "CASQUE_STORE"
"""The variable that names the store for `queuectl`. A program gets the store of its job."""
REFUSAL_VARIABLE = "CASQUE_REFUSAL"
"""The file to which an enqueue in a shell job writes that the loop guard refused it."""
VARIABLES = (
    JOB_ID_VARIABLE,
    ATTEMPT_VARIABLE,
    DEPTH_VARIABLE,
    CHAIN_VARIABLE,
    STORE_VARIABLE,
    REFUSAL_VARIABLE,
)
"""All variables that depend on the job. Those of an outer job must not reach an inner one."""
_LONGEST_ID = 512
_LONGEST_DEPTH = 9
_CHAIN_BYTES = 4_096
"""How much of a chain is passed on: its end. A limit as high as one wants keeps working."""
_LEFT_OUT = "…"


class Lineage(NamedTuple):
    """The data that a new job inherits: the number and the entrypoints of the jobs above it."""

    depth: int
    chain: tuple[str, ...]


OUTSIDE = Lineage(0, ())
# The dict inside os.environ: looking up a missing key in os.environ itself takes five function
# calls and an exception, at every enqueue.
_ENVIRONMENT: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
_DEPTH_KEY = getattr(os.environ, "encodekey", str)(DEPTH_VARIABLE)
_decode_chain = msgspec.json.Decoder(tuple[str, ...]).decode
running: ContextVar[Any] = ContextVar("casque_running", default=None)
"""The RunningJob (running_job.py) that this code runs in; None outside a job."""


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
    return Lineage(int(text) + 1, (*_chain_above(), f"job {job_id[:_LONGEST_ID]}"))


def below(job: Job) -> Lineage:
    """The lineage of a job enqueued by `job`."""
    return Lineage(job.depth + 1, (*job.chain, job.entrypoint))


def variables(job: Job, store: str | None) -> dict[str, str]:
    """The variables for a program that `job` starts. `store` is None if it cannot open the store.

    Unset the other VARIABLES, which may come from a job above this one.
    """
    given = {} if store is None else {STORE_VARIABLE: store}
    if job.chain:
        given[CHAIN_VARIABLE] = _encoded_chain(job.chain)
    return given | {
        JOB_ID_VARIABLE: job.id,
        ATTEMPT_VARIABLE: str(job.attempts),
        DEPTH_VARIABLE: str(job.depth),
    }


def _encoded_chain(chain: tuple[str, ...]) -> str:
    encoded = msgspec.json.encode(chain)
    while len(encoded) > _CHAIN_BYTES:
        kept = chain[1 + len(chain) // 2 :]
        chain = (_LEFT_OUT, *kept)
        encoded = msgspec.json.encode(chain)
    return encoded.decode()


def _chain_above() -> tuple[str, ...]:
    """The jobs above the job of this program, as far as the environment names them."""
    text = os.environ.get(CHAIN_VARIABLE, "")
    if not text or len(text) > _CHAIN_BYTES:
        return ()
    try:
        return _decode_chain(text.encode(errors="replace"))
    except msgspec.DecodeError:  # the name matters less than the depth
        return ()
