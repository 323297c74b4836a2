#!/bin/sh
# A session with queuectl: settings, jobs that succeed and that fail, workers, dead letters, and
# one job that five workers want. Every step is checked, and the first one that is wrong ends the
# session with exit code 1.
#
#   examples/queuectl-session.sh                    in a new SQLite file
#   examples/queuectl-session.sh file:///tmp/jobs   in another store, which it WIPES
set -eu

folder=$(mktemp -d)
store=${1:-sqlite:///$folder/queue.db}
export CASQUE_STORE="$store"
supervisor=

finish() {
    code=$?
    trap - EXIT
    if [ -n "$supervisor" ]; then
        kill "$supervisor" 2>/dev/null && wait "$supervisor" || true
    fi
    rm -rf "$folder"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

step() {
    printf '\n--- %s ---\n' "$1"
}

run() {
    printf '$ queuectl'
    for word in "$@"; do
        case $word in
            *[!A-Za-z0-9_./:=-]*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    queuectl "$@"
}

# One number out of a JSON object: the value of a key, as `queuectl --json` prints it.
value() {
    tr -d ' \n' | sed -n "s/.*\"$1\":\(-\{0,1\}[0-9][0-9]*\).*/\1/p"
}

expect() {
    if [ "$2" != "$3" ]; then
        printf 'NOT AS EXPECTED: %s is %s, not %s\n' "$1" "${2:-nothing}" "$3" >&2
        exit 1
    fi
    printf 'as expected: %s is %s\n' "$1" "$3"
}

# Wait until so many jobs are in a state, or a minute is over.
until_there() {
    tries=0
    while [ "$(queuectl status --json | value "$1")" != "$2" ]; do
        tries=$((tries + 1))
        if [ "$tries" -ge 240 ]; then
            printf 'NOT AS EXPECTED: after a minute there are not %s jobs %s\n' "$2" "$1" >&2
            queuectl status >&2
            exit 1
        fi
        sleep 0.25
    done
}

start_workers() {
    printf '$ queuectl worker start --count %s --foreground &\n' "$1"
    queuectl worker start --count "$1" --foreground &
    supervisor=$!
    tries=0
    until [ "$(queuectl worker list --json | grep -o '"pid"' | wc -l)" -eq "$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 240 ] || { echo 'NOT AS EXPECTED: the workers do not start' >&2; exit 1; }
        sleep 0.25
    done
}

stop_workers() {
    run worker stop
    wait "$supervisor"
    supervisor=
}

step 'An empty store, and its settings'
run config set max_retries 2
run config set backoff_base 2
run config list

step 'Four jobs'
run enqueue '{"id": "job-success", "command": "echo Job 1: success"}'
run enqueue '{"id": "job-fail", "command": "exit 1"}'
run enqueue '{"id": "job-long", "command": "sleep 3 && echo Job 3: done at last"}'
run enqueue '{"id": "job-invalid", "command": "not_a_real_command"}'
run status
expect 'the number of pending jobs' "$(queuectl status --json | value pending)" 4
run list --state pending

step 'Two workers'
start_workers 2
until_there completed 2
until_there dead 2
run status
run list --state completed
run dlq list
for job in job-fail job-invalid; do
    expect "attempts of $job" "$(queuectl show "$job" --json | value attempts)" 2
done
expect 'the exit code of job-fail' "$(queuectl show job-fail --json | value exit_code)" 1
expect 'the exit code of job-invalid' "$(queuectl show job-invalid --json | value exit_code)" 127

step 'A dead letter, once more'
run pause default
run dlq retry job-fail
expect 'the number of pending jobs' "$(queuectl status --json | value pending)" 1
expect 'attempts of job-fail' "$(queuectl show job-fail --json | value attempts)" 0
run list --state pending
run resume default
until_there dead 2
run dlq list
expect 'attempts of job-fail' "$(queuectl show job-fail --json | value attempts)" 2

step 'The workers stop'
stop_workers
run status
expect 'the number of workers' "$(queuectl worker list --json | grep -o '"pid"' | wc -l)" 0

step 'One job, five workers'
run reset --yes
run enqueue "{\"id\": \"job-race\", \"command\": \"echo ran >> '$folder/race' && sleep 2\"}"
start_workers 5
until_there completed 1
run status
run list --state completed
expect 'how often the job ran' "$(grep -c ran "$folder/race")" 1
expect 'attempts of job-race' "$(queuectl show job-race --json | value attempts)" 1
stop_workers

step 'All is as expected'
