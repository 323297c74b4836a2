"""casque.buckets: `Bucket`, and the values that it speaks of; public, for those who write one.

aws_profile     The keys that `aws configure` wrote, which obstore does not read.
daemon_threads  Threads for their requests, which the end of the process does not wait for.
disk            What it asks of a disk, so that a simulated one can take its place.
folder          `FolderBucket`: a local folder; temporary file, sync, link, sync.
memory          A bucket of this process, for tests.
obstore         Buckets on S3, Google Cloud Storage and Azure.
port            `Bucket`: named objects with conditional writes, under a ledger.
replies         What their servers' answers mean, and the remedies.
synced_names    Which of its names are known to be on disk, and bringing there the others.
"""

from casque.buckets.port import ABSENT, PAGE, Bucket, Expect, Found, Listed, Version

__all__ = ["ABSENT", "PAGE", "Bucket", "Expect", "Found", "Listed", "Version"]
