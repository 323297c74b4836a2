"""Transfer: jobs from one place to another. Public: the names of `__all__`.

copying       `copy`: all jobs of a store into another store.
exporting     `export`: the jobs of a store as lines of JSON, or as a file of jqueue.
importing     `import_file`: the jobs in a file of another queue.
opened_store  A store that is open during a transfer.
report        Which jobs were added, taken before, or not taken.
taking        Adds jobs to a store in batches, each job once.
sources/      One module for each format that can be imported.
"""

from casque.transfer.copying import copy
from casque.transfer.exporting import export
from casque.transfer.importing import import_file
from casque.transfer.report import NotTaken, TransferReport

__all__ = ["NotTaken", "TransferReport", "copy", "export", "import_file"]
