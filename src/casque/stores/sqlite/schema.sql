-- Schema 1. Every name begins with casque_: the queue may be in a database of the user.

CREATE TABLE casque_meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- A line: the jobs of one queue and one entrypoint that are, or will be, claimable.
CREATE TABLE casque_line (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    entrypoint TEXT NOT NULL,
    visit_us INTEGER,                    -- when the first of its jobs is due; NULL: it is in the
                                         -- ring, because it was due at the last check
    turn INTEGER NOT NULL,               -- the line that was served last has the highest
    paused INTEGER NOT NULL DEFAULT 0    -- 1: it is neither in the ring nor waiting
);
CREATE UNIQUE INDEX casque_line_name ON casque_line (queue, entrypoint);
-- NULL sorts first: the ring in the order of its turns, then the waiting lines by their time.
CREATE INDEX casque_line_next ON casque_line (visit_us, turn) WHERE paused = 0;
CREATE INDEX casque_line_entrypoint ON casque_line (entrypoint, visit_us, turn) WHERE paused = 0;

-- Instants and spans are microseconds; instants count from 1970 UTC.
CREATE TABLE casque_job (
    seq INTEGER PRIMARY KEY,             -- the order of enqueueing
    id TEXT NOT NULL,
    named INTEGER NOT NULL,              -- 0: the id contains seq (casque.system.ids.order_of)
    queue TEXT NOT NULL,
    entrypoint TEXT NOT NULL,
    line INTEGER,                        -- NULL once it is finished
    priority INTEGER NOT NULL,
    stage INTEGER NOT NULL,              -- 0 queued, 1 queued again, 2 in progress, 3 in progress
                                         -- for the last time, 4 completed, 5 dead, 6 cancelled
    due_us INTEGER,                      -- when it becomes claimable; in progress: the lease's end
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    token INTEGER NOT NULL DEFAULT 0,
    created_us INTEGER NOT NULL,
    run_us INTEGER,                      -- NULL: as created_us
    updated_us INTEGER,                  -- NULL: as created_us
    worker TEXT,
    claimed_us INTEGER,
    heartbeat_us INTEGER,
    finished_us INTEGER,
    expires_us INTEGER,                  -- of a finished job: when its record is removed; the
                                         -- largest integer: never
    retain_us INTEGER,
    timeout_us INTEGER,
    depth INTEGER NOT NULL DEFAULT 0,
    chain TEXT,                          -- JSON; NULL: empty
    headers TEXT,                        -- JSON, an object of texts; NULL: none
    error TEXT,
    result BLOB,
    progress REAL,
    note TEXT,
    output BLOB,
    history TEXT,                        -- JSON; NULL: empty
    payload BLOB NOT NULL                -- last, so that the rest is read without it
);
-- An id that was minted for its job needs no index: a commit changes one page less.
CREATE UNIQUE INDEX casque_job_name ON casque_job (id) WHERE named = 1;
-- With seq for the order and stage for the counts, claims and stats read only the index.
CREATE INDEX casque_job_due ON casque_job (line, priority, due_us, seq, stage)
    WHERE line IS NOT NULL;
CREATE INDEX casque_job_expiry ON casque_job (expires_us, stage, queue)
    WHERE expires_us IS NOT NULL;
-- Few jobs are in it. A claim does not change it, because it says nothing of the stage.
CREATE INDEX casque_job_mismatch ON casque_job (queue)
    WHERE error >= 'mismatch: ' AND error < 'mismatch:!';

CREATE TABLE casque_record (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    expires_us INTEGER,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX casque_record_expiry ON casque_record (expires_us) WHERE expires_us IS NOT NULL;

-- Counters. One row per writer has its last commit. The row of writer '' has the tokens, turns and
-- identity of the store; its number counts the callers' transactions that jobs were added to. All
-- are in one table, so that a commit changes one page.
CREATE TABLE casque_counter (
    writer TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    seen_us INTEGER,                     -- at most a minute behind; exact if there are answers
    answers BLOB,                        -- to its last commit, if the writer is remote
    token INTEGER,                       -- no higher token was issued
    turn INTEGER,
    identity TEXT                        -- differs from that of an earlier store in this place
) WITHOUT ROWID;
CREATE INDEX casque_counter_seen ON casque_counter (seen_us) WHERE seen_us IS NOT NULL;

-- For people: jobs with their status in words and times as UTC text. The library does not use it.
CREATE VIEW casque_jobs AS
SELECT
    id,
    queue,
    entrypoint,
    priority,
    CASE
        WHEN stage < 2 THEN 'queued'
        WHEN stage < 4 THEN 'in_progress'
        WHEN stage = 4 THEN 'completed'
        WHEN stage = 5 THEN 'dead'
        ELSE 'cancelled'
    END AS status,
    attempts,
    max_attempts,
    worker,
    error,
    strftime('%Y-%m-%d %H:%M:%f', created_us / 1e6, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%f', due_us / 1e6, 'unixepoch') AS due_at,
    strftime('%Y-%m-%d %H:%M:%f', finished_us / 1e6, 'unixepoch') AS finished_at
FROM casque_job;

INSERT INTO casque_counter (writer, number, token, turn, identity)
VALUES ('', 0, 0, 0, hex(randomblob(16)));
INSERT INTO casque_meta (key, value) VALUES ('schema', '1');
