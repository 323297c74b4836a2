"""casque.buckets: `Bucket`, and the values that it speaks of; public, for whoever writes one."""

from casque.buckets.port import ABSENT, PAGE, Bucket, Expect, Found, Listed, Version

__all__ = ["ABSENT", "PAGE", "Bucket", "Expect", "Found", "Listed", "Version"]
