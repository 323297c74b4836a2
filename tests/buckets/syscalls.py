"""Syscalls: logs the file operations of a child process, and kills it before any one of them.

It uses a small library that is loaded before libc. The child's writes to standard
output are in the same log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.buckets.forks import killed_at_each

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_fatal(void) {
    static int calls;
    const char *fatal = getenv("KILL_AT");
    return fatal && ++calls == atoi(fatal);
}

static void note(const char *what, const char *one, const char *other) {
    char line[2 * PATH_MAX + 64];
    int log = open(getenv("SHIM_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int end = snprintf(line, sizeof line, "%s\t%s\t%s\n", what, one, other);
    syscall(SYS_write, log, line, end);
    close(log);
}

static void note_fd(const char *what, int fd) {
    char link[32], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    note(what, path, "");
}

#define CALL(what, name, params, args, one, other) \
    int name params { \
        int (*next) params = dlsym(RTLD_NEXT, #name); \
        if (is_fatal()) kill(getpid(), SIGKILL); \
        int done = next args; \
        if (!done) note(what, one, other); \
        return done; \
    }
#define SYNC(name) \
    int name(int fd) { \
        int (*next)(int) = dlsym(RTLD_NEXT, #name); \
        if (is_fatal()) kill(getpid(), SIGKILL); \
        int done = next(fd); \
        if (!done) note_fd("sync", fd); \
        return done; \
    }

SYNC(fsync)
SYNC(fdatasync)
CALL("link", link, (const char *a, const char *b), (a, b), a, b)
CALL("link", linkat, (int x, const char *a, int y, const char *b, int f), (x, a, y, b, f), a, b)
CALL("rename", rename, (const char *a, const char *b), (a, b), a, b)
CALL("unlink", unlink, (const char *a), (a), a, "")
CALL("mkdir", mkdir, (const char *a, mode_t mode), (a, mode), a, "")
CALL("rmdir", rmdir, (const char *a), (a), a, "")

ssize_t write(int fd, const void *data, size_t size) {
    if (fd == 1) {
        char said[200];
        snprintf(said, sizeof said, "%.*s", (int)size, (char *)data);
        said[strcspn(said, "\n")] = 0;
        note("say", said, "");
    } else if (is_fatal()) {
        syscall(SYS_write, fd, data, size / 2);
        kill(getpid(), SIGKILL);
    } else {
        note_fd("write", fd);
    }
    return syscall(SYS_write, fd, data, size);
}
"""


class Call(NamedTuple):
    """An operation and its file; or a line that the child printed."""

    what: str
    path: str
    target: str


def build_shim(folder: Path) -> Path:
    if shutil.which("cc") is None:
        if os.environ.get("CI"):
            pytest.fail("a C compiler (cc) is needed to see what a process syncs, and to kill it")
        pytest.skip("there is no C compiler (cc)")
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    build = ["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
    subprocess.run(build, check=True)
    return library


def trace(shim: Path, folder: Path, code: str, *arguments: str) -> list[Call]:
    """Run a child process, and return what it did."""
    _run(shim, folder / "shim.log", code, *arguments)
    return _calls(folder / "shim.log")


def killed_at_every_call(shim: Path, folder: Path, begin: str) -> Iterator[tuple[Path, list[Call]]]:
    """Call `run(place)`, which `begin` defines, killed at its first call, its second, and so on.

    Returns the folder of each and what it did until then. The last one was not killed.
    """
    environment = {"LD_PRELOAD": str(shim), "SHIM_LOG": str(folder / "shim.log")}
    for place in killed_at_each(folder, begin, environment):
        yield place, _calls(place / "shim.log")


def _run(shim: Path, log: Path, code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "SHIM_LOG": str(log),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert done.returncode == 0, done.stderr


def _calls(log: Path) -> list[Call]:
    return [Call(*line.split("\t")) for line in log.read_text().splitlines()]
