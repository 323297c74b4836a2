"""jqueue's storages, each on the storage of the same name in casque.

filesystem  LocalFileSystemStorage.
gcs         GCSStorage.
memory      InMemoryStorage.
s3          S3Storage.
"""
