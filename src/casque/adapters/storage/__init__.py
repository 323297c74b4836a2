"""Adapters: storages for the single object of a document store.

filesystem  `LocalFileSystemStorage`: temporary file, sync, rename, sync.
gcs         `GCSStorage`: through obstore, or through a google-cloud-storage client.
memory      `InMemoryStorage`.
port        `ObjectStoragePort`: the two methods that a document store needs.
s3          `S3Storage`: through obstore, or through an aioboto3 session.
"""
