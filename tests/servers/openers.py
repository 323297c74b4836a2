"""Openers: open buckets on the test servers, with functions that other processes can import."""

from __future__ import annotations

from casque.buckets.obstore import ObstoreBucket, azure_bucket, gcs_bucket, s3_bucket

BUCKET = "casque"
"""The bucket that every server has."""
AZURE_ACCOUNT = "devstoreaccount1"
# Azurite's default key, which is public.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def s3_of(url: str, prefix: str, *, bucket: str = BUCKET, key_id: str = "test") -> ObstoreBucket:
    return s3_bucket(
        bucket,
        prefix,
        endpoint=url,
        region="us-east-1",
        access_key_id=key_id,
        secret_access_key="testtest",
    )


def gcs_of(url: str, prefix: str, *, bucket: str = BUCKET, token: str = "any") -> ObstoreBucket:
    return gcs_bucket(bucket, prefix, endpoint=url, bearer_token=token)


def azure_of(url: str, prefix: str, *, bucket: str = BUCKET) -> ObstoreBucket:
    return azure_bucket(
        bucket, prefix, endpoint=url, account_name=AZURE_ACCOUNT, account_key=AZURE_KEY
    )
