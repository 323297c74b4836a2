"""Job ids: a short form for narrow tables, and the job that a part of an id means."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from casque.cli.job_search import pages
from casque.cli.store import Access
from casque.errors import CasqueError, InvalidError, JobNotFoundError
from casque.rules.views import JobFilter, View
from casque.system.ids import order_of

SHORTEST_PART = 4
"""A shorter beginning of an id is not searched for."""
SHORTEST_END = 6
"""As many characters of the end of an id are enough: ids of the same moment begin alike."""
SEARCHED_JOBS = 100_000
"""A part of an id is searched for among at most this many jobs."""

_SEARCHED_PARTS = 20
"""One command searches for at most this many parts; a longer list comes from a program."""
_CANDIDATES = 4
_TAILS = (8, 12, 16, 24, 36)
_CUT = "…"
_HASH = re.compile("[0-9a-f-]{32,}")


def shown_ids(ids: Sequence[str], room: int) -> list[str]:
    """Return the ids as a table shows them: whole if all fit, else by the ends that differ."""
    if max(map(len, ids), default=0) <= room:
        return list(ids)
    for length in _TAILS:
        shown = [one if len(one) <= room else _CUT + _tail(one, length) for one in ids]
        if len(set(shown)) == len(set(ids)):
            return shown
    return list(ids)


def _tail(id: str, length: int) -> str:
    start = max(len(id) - length, 0)
    while start and _cuts_number(id, start):
        start -= 1
    return id[start:]


def resolved(
    access: Access,
    parts: Collection[str],
    view: View | None = None,
    *,
    only_generated: bool = False,
) -> dict[str, str | CasqueError]:
    """For each part of an id, the one id that begins or ends with it; or the error.

    The caller has looked for jobs with exactly these ids before: there is none. With `view`, only
    jobs in that state count, and with `only_generated` only ids that a program made or a table has
    cut. A part that no id has is not in the result.
    """
    wanted = {part: _bare(part) for part in parts if len(_bare(part)) >= SHORTEST_PART}
    short: dict[str, str | CasqueError] = {
        part: _too_short(part) for part in parts if part not in wanted
    }
    if not wanted or len(wanted) > _SEARCHED_PARTS:
        return short
    stats = access.run(access.queue.stats())
    if (stats.total if view is None else getattr(stats, view)) > SEARCHED_JOBS:
        return short | {part: _too_many(part) for part in wanted}
    found: dict[str, list[str]] = {part: [] for part in wanted}
    looked = 0
    for page in pages(access, JobFilter(view)):
        looked += len(page)
        if looked > SEARCHED_JOBS:  # they came meanwhile
            return short | {part: _too_many(part) for part in wanted}
        for part, ids in found.items():
            ids.extend(
                job.id
                for job in page
                if has_part(job.id, wanted[part])
                and (not only_generated or _is_generated(job.id) or part.startswith(_CUT))
            )
            del ids[_CANDIDATES:]
    return short | {part: _only(part, ids) for part, ids in found.items() if ids}


def has_part(id: str, part: str) -> bool:
    """True if the id begins with the part, or if the part is long enough, ends with it.

    Between jobs that people have numbered there is no guessing: `job1` does not mean `job10`.
    """
    if id.startswith(part) and not _cuts_number(id, len(part)):
        return True
    if len(part) < SHORTEST_END or not id.endswith(part):
        return False
    return not _cuts_number(id, len(id) - len(part))


def _cuts_number(id: str, place: int) -> bool:
    """True if this place is between two digits of an id that no program has made."""
    is_inside = 0 < place < len(id) and id[place - 1].isdecimal() and id[place].isdecimal()
    return is_inside and not _is_generated(id)


def _is_generated(id: str) -> bool:
    return order_of(id) is not None or _HASH.fullmatch(id) is not None


def _bare(part: str) -> str:
    """Return the part of an id as it was copied from a table, without the mark of the cut."""
    return part.removeprefix(_CUT)


def _only(part: str, ids: Sequence[str]) -> str | CasqueError:
    if len(ids) == 1:
        return ids[0]
    listed = [*ids[: _CANDIDATES - 1], *([_CUT] if len(ids) == _CANDIDATES else [])]
    return InvalidError(
        f"job {part}: several jobs have an id like this: {', '.join(listed)}. Write more of the id."
    )


def _too_short(part: str) -> CasqueError:
    return JobNotFoundError(
        f"job {part}: there is no such job. A part of an id must have at least {SHORTEST_PART} "
        "characters.",
        job_id=part,
    )


def _too_many(part: str) -> CasqueError:
    return JobNotFoundError(
        f"job {part}: there is no job with exactly this id, and parts of ids are searched among at "
        f"most {SEARCHED_JOBS:,} jobs. Write the whole id; `queuectl list --json` prints it.",
        job_id=part,
    )
