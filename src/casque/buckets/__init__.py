"""casque.buckets: `Bucket` and its values; public, for authors of a new bucket.

addresses       Checks the parts of a bucket's address.
aws_profile     The keys that `aws configure` wrote, which obstore does not read.
daemon_threads  Threads for the requests of obstore; Python does not wait for them at exit.
disk            The disk operations of `FolderBucket`, so that a simulated disk can replace them.
folder          `FolderBucket`: a local folder; temporary file, sync, link, sync.
memory          A bucket in the memory of this process, for tests.
meter           Counts the requests of a ledger by kind.
obstore         Buckets on S3, Google Cloud Storage and Azure.
port            `Bucket`: named objects with conditional writes, under a ledger.
prices          What S3, Google and Azure charge for requests and storage.
replies         Turns the replies of storage servers into errors with remedies.
synced_names    The names of `FolderBucket` that are on disk; syncs the others.
"""

from casque.buckets.port import ABSENT, PAGE, Bucket, Expect, Found, Listed, Version

__all__ = ["ABSENT", "PAGE", "Bucket", "Expect", "Found", "Listed", "Version"]
