#!/bin/sh
# A whole session with queuectl, for the shell of the image: settings, jobs that succeed and that
# fail, workers, dead letters, and one job that five workers want. Exit code 0: all is as expected.
#
#   ./test.sh            in a new SQLite file in /data, which it removes at the end
#   ./test.sh FOLDER     in another folder
#
# It does not touch the queue of CASQUE_STORE.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
folder=$(mktemp -d "${1:-/data}/session.XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

"$here/examples/queuectl-session.sh" "sqlite:///$folder/queue.db"
