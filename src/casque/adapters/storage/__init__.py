"""Adapters: what keeps the one object of a document.

filesystem  `LocalFileSystemStorage`: temporary file, sync, rename, sync.
gcs         `GCSStorage`: by obstore, or by a client of google-cloud-storage.
memory      `InMemoryStorage`.
port        `ObjectStoragePort`: the two methods under a document.
s3          `S3Storage`: by obstore, or by a session of aioboto3.
"""
