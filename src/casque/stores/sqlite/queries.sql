-- Every statement of the SQLite store, by name. tests/sqlite/test_plans.py checks the plan of each.

-- name: data_version
PRAGMA data_version;

-- name: counters
SELECT token, turn, identity FROM casque_counter WHERE writer = '';

-- name: schema
SELECT value FROM casque_meta WHERE key = 'schema';

-- name: writer
SELECT number, seen_us, answers FROM casque_counter WHERE writer = ?1;

-- name: count
UPDATE casque_counter SET token = ?1, turn = ?2 WHERE writer = '';

-- name: count_joined
UPDATE casque_counter SET number = number + 1 WHERE writer = '';

-- name: identify
UPDATE casque_counter SET identity = ?1 WHERE writer = '';

-- name: stamp
UPDATE casque_counter SET number = ?2 WHERE writer = ?1;

-- name: stamp_and_see
INSERT INTO casque_counter (writer, number, seen_us, answers) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (writer) DO UPDATE
SET number = excluded.number, seen_us = excluded.seen_us, answers = excluded.answers;

-- name: forget_writers
DELETE FROM casque_counter WHERE writer IN (
    SELECT writer FROM casque_counter WHERE seen_us < ?1 ORDER BY seen_us LIMIT ?2
);

-- name: line
SELECT id, queue, entrypoint, visit_us, turn, paused FROM casque_line INDEXED BY casque_line_name
WHERE queue = ?1 AND entrypoint = ?2;

-- name: line_by_id
SELECT id, queue, entrypoint, visit_us, turn, paused FROM casque_line WHERE id = ?1;

-- name: insert_line
INSERT INTO casque_line (queue, entrypoint, visit_us, turn, paused) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: place_line
UPDATE casque_line SET visit_us = ?2, turn = ?3 WHERE id = ?1;

-- name: turn_line
UPDATE casque_line SET turn = ?2 WHERE id = ?1;

-- name: delete_line
DELETE FROM casque_line WHERE id = ?1;

-- name: delete_lines_of_queue
DELETE FROM casque_line INDEXED BY casque_line_name WHERE queue = ?1;

-- name: pause_lines
UPDATE casque_line INDEXED BY casque_line_name SET paused = ?2 WHERE queue = ?1;

-- name: ring
SELECT id, queue, entrypoint, visit_us, turn, paused FROM casque_line INDEXED BY casque_line_next
WHERE visit_us IS NULL AND paused = 0 ORDER BY turn LIMIT ?1;

-- name: ring_of_entrypoint
SELECT id, queue, entrypoint, visit_us, turn, paused
FROM casque_line INDEXED BY casque_line_entrypoint
WHERE visit_us IS NULL AND paused = 0 AND entrypoint = ?2 ORDER BY turn LIMIT ?1;

-- name: come_due
SELECT id, queue, entrypoint, visit_us, turn, paused FROM casque_line INDEXED BY casque_line_next
WHERE paused = 0 AND visit_us <= ?1 ORDER BY visit_us LIMIT ?2;

-- name: come_due_of_entrypoint
SELECT id, queue, entrypoint, visit_us, turn, paused
FROM casque_line INDEXED BY casque_line_entrypoint
WHERE paused = 0 AND entrypoint = ?3 AND visit_us <= ?1 ORDER BY visit_us LIMIT ?2;

-- name: lines_of_queue
SELECT id, queue, entrypoint, visit_us, turn, paused FROM casque_line INDEXED BY casque_line_name
WHERE queue = ?1;

-- name: first_waiting
SELECT min(visit_us) FROM casque_line INDEXED BY casque_line_next
WHERE visit_us IS NOT NULL AND paused = 0;

-- name: first_waiting_of_entrypoint
SELECT min(visit_us) FROM casque_line INDEXED BY casque_line_entrypoint
WHERE visit_us IS NOT NULL AND paused = 0 AND entrypoint = ?1;

-- From one entrypoint to the next, however many lines each has.
-- name: next_entrypoint
SELECT entrypoint FROM casque_line INDEXED BY casque_line_entrypoint
WHERE paused = 0 AND entrypoint > ?1 ORDER BY entrypoint LIMIT 1;

-- The first jobs of a line, due or not: usually a claim takes these.
-- name: heads
SELECT priority, due_us, seq, stage FROM casque_job INDEXED BY casque_job_due WHERE line = ?1
ORDER BY priority, due_us, seq LIMIT ?2;

-- The first job of the next priority of a line, however many jobs this priority has. (Not all
-- priorities in one recursive statement: SQLite would allocate temporary tables each time.)
-- name: next_rank
SELECT priority, due_us, seq, stage FROM casque_job INDEXED BY casque_job_due
WHERE line = ?1 AND priority > ?2 ORDER BY priority, due_us, seq LIMIT 1;

-- name: due_of_rank
SELECT priority, due_us, seq, stage FROM casque_job INDEXED BY casque_job_due
WHERE line = ?1 AND priority = ?2 AND due_us <= ?3 ORDER BY due_us, seq LIMIT ?4;

-- name: claim
UPDATE casque_job SET token = ?2, {lease}
WHERE seq = ?1
RETURNING {claimed};

-- name: claim_all
UPDATE casque_job SET token = ?2 + picked.key, {lease}
FROM json_each(?1) AS picked WHERE seq = picked.value
RETURNING {claimed};

-- Most commits are these: one statement each, which is its own transaction. They change something
-- only if the job's line stays in its place; otherwise the commit takes the slow path.

-- name: add_fast
INSERT INTO casque_job (
    seq, id, named, queue, entrypoint, line, priority, stage, due_us, max_attempts, created_us,
    payload, retain_us, timeout_us, depth, chain, headers
)
SELECT ?1, ?2, 0, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?7, ?9, ?10, ?11, ?12, ?13, ?14
WHERE (
    SELECT queue = ?3 AND entrypoint = ?4 AND visit_us IS NULL FROM casque_line WHERE id = ?5
)
ON CONFLICT DO NOTHING;

-- name: add_plain_fast
INSERT INTO casque_job (
    seq, id, named, queue, entrypoint, line, priority, stage, due_us, max_attempts, created_us,
    payload
)
SELECT ?1, ?2, 0, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?7, ?9
WHERE (
    SELECT queue = ?3 AND entrypoint = ?4 AND visit_us IS NULL FROM casque_line WHERE id = ?5
)
ON CONFLICT DO NOTHING;

-- Claims the first job of a line if it is queued and due, another due job stays behind it, no other
-- line may be due, and no other handle has taken a token since this one reserved some. A pause
-- takes a token too, so the queue is not paused either. The line is in the index, so a second line
-- in it that may be due is another one.
-- name: claim_fast
UPDATE casque_job SET token = ?2, {lease}
WHERE seq = (
    SELECT seq FROM casque_job INDEXED BY casque_job_due WHERE line = ?1
    ORDER BY priority, due_us, seq LIMIT 1
)
AND stage < 2 AND due_us <= ?4 AND queue = ?7 AND entrypoint = ?8
AND (
    SELECT due_us <= ?4 FROM casque_job INDEXED BY casque_job_due WHERE line = ?1
    ORDER BY priority, due_us, seq LIMIT 1 OFFSET 1
)
AND (SELECT token = ?6 FROM casque_counter WHERE writer = '')
AND coalesce((
    SELECT visit_us IS NOT NULL AND visit_us > ?4 FROM casque_line INDEXED BY casque_line_next
    WHERE paused = 0 ORDER BY visit_us, turn LIMIT 1 OFFSET 1
), 1)
RETURNING {claimed_fast};

-- The jobs of one priority of a line that are leased until ?3, under tokens ?4 to ?5.
-- name: held_until
SELECT {claimed} FROM casque_job WHERE token BETWEEN ?4 AND ?5 AND seq IN (
    SELECT seq FROM casque_job INDEXED BY casque_job_due
    WHERE line = ?1 AND priority = ?2 AND due_us = ?3
);

-- name: ack_fast
DELETE FROM casque_job
WHERE seq = ?3 AND id = ?1 AND token = ?2 AND stage IN (2, 3) AND coalesce(retain_us, 0) = 0
AND due_us > ?4
AND due_us > coalesce((SELECT visit_us FROM casque_line WHERE id = casque_job.line), 0)
AND EXISTS (
    SELECT 1 FROM casque_job AS other INDEXED BY casque_job_due
    WHERE other.line = casque_job.line AND other.seq <> casque_job.seq
);

-- name: holds
SELECT seq, id, token, line, due_us, retain_us FROM casque_job
WHERE seq IN (SELECT value FROM json_each(?1)) AND stage IN (2, 3);

-- name: holds_named
SELECT seq, id, token, line, due_us, retain_us FROM casque_job INDEXED BY casque_job_name
WHERE named = 1 AND id IN (SELECT value FROM json_each(?1)) AND stage IN (2, 3);

-- name: delete_jobs
DELETE FROM casque_job WHERE seq IN (SELECT value FROM json_each(?1));

-- The same as `transitions.completed`; the history keeps the last ten attempts.
-- name: complete
UPDATE casque_job SET
    line = NULL,
    stage = 4,
    due_us = NULL,
    updated_us = ?2,
    finished_us = ?2,
    expires_us = ?2 + retain_us,
    error = NULL,
    result = ?3,
    history = json_insert(
        CASE
            WHEN json_array_length(history) >= 10 THEN json_remove(history, '$[0]')
            ELSE coalesce(history, '[]')
        END,
        '$[#]',
        json_object(
            'number', attempts, 'worker', worker, 'started_us', claimed_us, 'ended_us', ?2,
            'failure', NULL
        )
    ),
    payload = CASE WHEN length(payload) <= {kept_payload} THEN payload ELSE x'' END
WHERE seq = ?1;

-- name: add
INSERT INTO casque_job (
    seq, id, named, queue, entrypoint, line, priority, stage, due_us, max_attempts, created_us,
    run_us, retain_us, timeout_us, depth, chain, headers, payload
) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- For jobs without a name, a time, a parent or headers: most jobs. Binding the other columns would
-- take longer than storing them.
-- name: add_plain
INSERT INTO casque_job (
    seq, id, named, queue, entrypoint, line, priority, stage, due_us, max_attempts, created_us,
    payload
) VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?7, ?9)
ON CONFLICT DO NOTHING;

-- A job of another store. The first 20 parameters are those of update_job.
-- name: insert_job
INSERT INTO casque_job (
    seq, line, stage, due_us, attempts, token, run_us, updated_us, worker, claimed_us,
    heartbeat_us, finished_us, expires_us, error, result, progress, note, output, history, payload,
    id, queue, entrypoint, priority, max_attempts, created_us, retain_us, timeout_us, depth, chain,
    headers, named
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1
)
ON CONFLICT (seq) DO NOTHING;

-- name: update_job
UPDATE casque_job SET
    line = ?2, stage = ?3, due_us = ?4, attempts = ?5, token = ?6, run_us = ?7, updated_us = ?8,
    worker = ?9, claimed_us = ?10, heartbeat_us = ?11, finished_us = ?12, expires_us = ?13,
    error = ?14, result = ?15, progress = ?16, note = ?17, output = ?18, history = ?19,
    payload = ?20
WHERE seq = ?1;

-- name: delete_job
DELETE FROM casque_job WHERE seq = ?1;

-- name: job_minted
SELECT {columns} FROM casque_job WHERE seq = ?2 AND id = ?1;

-- name: job_named
SELECT {columns} FROM casque_job INDEXED BY casque_job_name WHERE named = 1 AND id = ?1;

-- name: id_of
SELECT id FROM casque_job WHERE seq = ?1;

-- name: job_by_seq
SELECT {columns} FROM casque_job WHERE seq = ?1;

-- name: heartbeat_of
SELECT heartbeat_us FROM casque_job WHERE seq = ?1;

-- name: stale_jobs
SELECT {columns} FROM casque_job
WHERE seq IN (SELECT seq FROM casque_job WHERE line IS NOT NULL AND stage IN (2, 3))
AND heartbeat_us <= ?1 ORDER BY seq;

-- name: delete_expired_jobs
DELETE FROM casque_job WHERE seq IN (
    SELECT seq FROM casque_job WHERE expires_us <= ?1 ORDER BY expires_us LIMIT ?2
);

-- name: next_job_expiry
SELECT min(expires_us) FROM casque_job WHERE expires_us IS NOT NULL;

-- name: next_record_expiry
SELECT min(expires_us) FROM casque_record WHERE expires_us IS NOT NULL;

-- name: expired_records
SELECT kind, name FROM casque_record WHERE expires_us <= ?1 ORDER BY expires_us LIMIT ?2;

-- name: purge_spent
DELETE FROM casque_job WHERE seq IN (
    SELECT seq FROM casque_job WHERE line IS NOT NULL AND stage = 3 AND due_us <= ?1
) AND (?2 IS NULL OR queue = ?2)
RETURNING line, due_us;

-- name: count_finished
SELECT count(*) FROM casque_job
WHERE expires_us > ?1 AND finished_us <= ?2 AND (?3 IS NULL OR queue = ?3)
AND (?4 IS NULL OR stage = ?4);

-- name: purge_finished
DELETE FROM casque_job
WHERE expires_us IS NOT NULL AND finished_us <= ?1 AND (?2 IS NULL OR queue = ?2)
AND (?3 IS NULL OR stage = ?3);

-- name: count_gone
SELECT count(*) FROM casque_job WHERE expires_us <= ?1 AND queue = ?2;

-- name: drop_live
DELETE FROM casque_job WHERE line IN (SELECT id FROM casque_line WHERE queue = ?1);

-- name: drop_finished
DELETE FROM casque_job WHERE expires_us IS NOT NULL AND queue = ?1;

-- The last parameter decides whether leases have ended; after a clock step it is not the time.
-- name: live_stats
SELECT
    total(stage = 0 AND due_us <= ?1),
    total(stage = 0 AND due_us > ?1),
    total(stage = 1),
    total(stage = 2 OR stage = 3 AND due_us > ?2),
    total(stage = 3 AND due_us <= ?2)
FROM casque_job WHERE line IS NOT NULL;

-- name: live_stats_of_queue
SELECT
    total(job.stage = 0 AND job.due_us <= ?1),
    total(job.stage = 0 AND job.due_us > ?1),
    total(job.stage = 1),
    total(job.stage = 2 OR job.stage = 3 AND job.due_us > ?3),
    total(job.stage = 3 AND job.due_us <= ?3)
FROM casque_line AS line CROSS JOIN casque_job AS job
WHERE line.queue = ?2 AND job.line = line.id;

-- name: finished_stats
SELECT total(stage = 4), total(stage = 5), total(stage = 6) FROM casque_job
WHERE expires_us > ?1 AND (?2 IS NULL OR queue = ?2);

-- Queued jobs whose error begins with 'mismatch: ': see `transitions.is_mismatched`.
-- name: mismatched
SELECT count(*) FROM casque_job INDEXED BY casque_job_mismatch
WHERE error >= 'mismatch: ' AND error < 'mismatch:!' AND stage < 2 AND queue = ?1;

-- name: mismatched_in_all
SELECT count(*) FROM casque_job INDEXED BY casque_job_mismatch
WHERE error >= 'mismatch: ' AND error < 'mismatch:!' AND stage < 2;

-- name: jobs
SELECT {columns} FROM casque_job
WHERE seq > ?1 AND (expires_us IS NULL OR expires_us > ?2)
AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR entrypoint = ?4)
AND (
    ?5 IS NULL
    OR ?5 = 'queued' AND stage IN (0, 1)
    OR ?5 = 'pending' AND stage = 0 AND due_us <= ?2
    OR ?5 = 'scheduled' AND stage = 0 AND due_us > ?2
    OR ?5 = 'failed' AND stage = 1
    OR ?5 = 'processing' AND (stage = 2 OR stage = 3 AND due_us > ?7)
    OR ?5 = 'completed' AND stage = 4
    OR ?5 = 'dead' AND (stage = 5 OR stage = 3 AND due_us <= ?7)
    OR ?5 = 'cancelled' AND stage = 6
)
ORDER BY seq LIMIT ?6;

-- As `jobs`, with the same parameters, for jobs in progress.
-- name: jobs_in_progress
SELECT {columns} FROM casque_job
WHERE seq IN (
    SELECT seq FROM casque_job INDEXED BY casque_job_due
    WHERE line IS NOT NULL AND (stage = 2 OR stage = 3 AND due_us > ?7)
)
AND seq > ?1 AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR entrypoint = ?4)
AND ?5 = 'processing'
ORDER BY seq LIMIT ?6;

-- name: live_queues
SELECT DISTINCT queue FROM casque_line;

-- name: finished_queues
SELECT DISTINCT queue FROM casque_job WHERE expires_us > ?1;

-- name: record
SELECT kind, name, value, version, expires_us FROM casque_record WHERE kind = ?1 AND name = ?2;

-- name: records
SELECT kind, name, value, version, expires_us FROM casque_record
WHERE kind = ?1 AND (expires_us IS NULL OR expires_us > ?2) ORDER BY name;

-- name: put_record
INSERT INTO casque_record (kind, name, value, version, expires_us) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (kind, name) DO UPDATE SET
    value = excluded.value, version = excluded.version, expires_us = excluded.expires_us;

-- name: delete_record
DELETE FROM casque_record WHERE kind = ?1 AND name = ?2;
