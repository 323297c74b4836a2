"""ObjectStoragePort: the same two methods in jqueue and in casque."""

from casque.adapters.storage.port import ObjectStoragePort

__all__ = ["ObjectStoragePort"]
