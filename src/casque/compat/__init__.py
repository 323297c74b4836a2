"""Other libraries' APIs on casque's stores.

jqueue/  The names, signatures and errors of jqueue.
"""
