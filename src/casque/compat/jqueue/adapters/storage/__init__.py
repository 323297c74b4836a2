"""jqueue's storages. Each wraps casque's storage of the same name.

filesystem  LocalFileSystemStorage.
gcs         GCSStorage.
memory      InMemoryStorage.
s3          S3Storage.
"""
