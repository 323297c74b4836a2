"""Watch: files that change become jobs, one for each content of a file.

contents       The content of a file: its hash, and the id of its job.
folders        The watched folders: their files, and which of them are wanted.
notifications  The changes that the kernel reports, through the package watchfiles.
own_jobs       The jobs of watched files that have not ended, and the contents that they left.
report         What a watcher says: to a log, or to a terminal.
watcher        The loop: changes are gathered, settle, and become jobs.
"""
